"""Find the global minimum of Chinchilla's objective: damped Newton steps from a grid of points.

Thousands of descents end in the same few minima. So all of them take a few steps, the lowest
continue, and the distinct points among those converge.
"""

import itertools

import numpy as np

from helpers.scaling.objective import Objective

STEEP = 1e-12  # a point whose gradient is smaller counts as a minimum
LONGEST = 2.0  # the longest step, in scaled coordinates


def descend(
    objective: Objective,
    points: np.ndarray,
    *,
    newton: bool,
    steps: int,
    weights: np.ndarray | None = None,
    tolerance: float = STEEP,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Minimise by Levenberg-Marquardt: each step solves (M + mu I) step = -gradient.

    mu falls after a step that lowers f, and grows otherwise. With `newton`, M is the Hessian with
    its eigenvalues made positive: it converges in a few steps near a minimum. Without `newton`, M
    is the bound of `Objective.derivatives`: it is never negative, and is reliable far from a
    minimum. No point moves to a higher f.

    Args:
        points: (S, Z) scaled.
        steps: the most steps for each point.
        weights: (S, n) of the observations.
        tolerance: a point whose gradient is smaller has converged.

    Returns:
        (points (S, Z), f (S,), the largest component of the gradient (S,)).
    """
    points = np.array(points, dtype=np.float64)
    f, steepness = np.full(len(points), np.inf), np.full(len(points), np.inf)
    damping = np.full(len(points), 1e-3)
    live = np.arange(len(points))

    for _ in range(steps):
        here = points[live]
        w = None if weights is None else weights[live]
        value, gradient, hessian, bound = objective.derivatives(here, w)
        f[live], steepness[live] = value, np.abs(gradient).max(-1)
        going = (steepness[live] > tolerance) & (damping[live] < 1e12)
        if not going.all():
            live, here, value, gradient = live[going], here[going], value[going], gradient[going]
            hessian, bound = hessian[going], bound[going]
            w = None if weights is None else weights[live]
        if not len(live):
            break
        values, vectors = np.linalg.eigh(hessian if newton else bound)
        # Damping is relative to the bound, which grows with the data.
        size = np.trace(bound, axis1=1, axis2=2)[:, None] + 1e-300
        stiff = np.abs(values) + damping[live, None] * size + 1e-15 * size
        slope = np.einsum("szk,sz->sk", vectors, gradient)
        step = -np.einsum("szk,sk->sz", vectors, slope / stiff)
        length = np.linalg.norm(step, axis=-1, keepdims=True)
        step *= np.minimum(1.0, LONGEST / np.maximum(length, 1e-300))
        after = objective.value(here + step, w)
        better = after < value
        points[live[better]] += step[better]
        f[live[better]] = after[better]
        damping[live] = np.where(better, np.maximum(damping[live] / 5, 1e-16), damping[live] * 4)
    return points, f, steepness


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
