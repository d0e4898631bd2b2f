"""Find the global minimum of Chinchilla's objective from a grid of starting points.

Thousands of descents end in the same few minima. So all of them take a few steps, the lowest
continue, and the distinct points among those converge.
"""

import itertools

import numpy as np

from helpers.scaling.descent import descend
from helpers.scaling.objective import Objective

FIRST, MIDDLE, LAST = 12, 25, 120  # steps
KEPT = 500  # points that continue after the first steps
ENDING = 150  # points that continue after the middle steps


def grid() -> np.ndarray:
    """Return the (4500, 5) starting points (a, b, e, alpha, beta).

    Hoffmann et al. 2022, appendix D.2.
    """
    factors, exponents = np.arange(0, 30, 5.0), np.arange(0, 2.5, 0.5)
    return np.array(
        list(itertools.product(factors, factors, np.arange(-1, 1.5, 0.5), exponents, exponents))
    )


def minima(objective: Objective, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct minima found from `starts`, the lowest first.

    Args:
        starts: (S, 5) points (a, b, e, alpha, beta).

    Returns:
        (theta (M, 5), f (M,), the largest component of the gradient in scaled coordinates (M,)).
    """
    points = objective.inward(starts)
    halves = np.array_split(np.arange(len(points)), max(1, len(points) // 500))
    f = np.empty(len(points))
    for half in halves:
        points[half], f[half], _ = descend(objective, points[half], newton=False, steps=FIRST)
    points = points[lowest_apart(points, f, KEPT)]
    points, f, _ = descend(objective, points, newton=False, steps=MIDDLE)
    points = points[lowest_apart(points, f, ENDING)]
    points, f, steepness = descend(objective, points, newton=True, steps=LAST)
    chosen = lowest_apart(points, f, ENDING)
    return objective.outward(points[chosen]), f[chosen], steepness[chosen]


def lowest_apart(points: np.ndarray, f: np.ndarray, count: int, near: float = 1e-6) -> np.ndarray:
    """Indices of at most `count` points, lowest first; each differs by `near` in a coordinate."""
    order = np.argsort(f, kind="stable")
    cells = np.round(points[order] / near)
    _, first = np.unique(cells, axis=0, return_index=True)
    return order[np.sort(first)][:count]
