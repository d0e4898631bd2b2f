"""Scaling laws: what is counted, what was found, how it is fitted, and what to plan by it."""
