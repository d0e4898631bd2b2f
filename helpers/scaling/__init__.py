"""Scaling laws (Kaplan, Chinchilla): isoFLOP, fits, compute-optimal plans, our own sweep."""
