"""Scaling laws: published constants, fits, our own sweep, and plans for a budget."""
