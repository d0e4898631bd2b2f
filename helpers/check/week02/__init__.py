"""Scaling laws: FLOPs, the objective of a fit, the optimal size, a flawed study."""
