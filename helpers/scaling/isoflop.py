"""Chinchilla's first two approaches: the envelope of training curves, and IsoFLOP parabolas.

Hoffmann et al. 2022, arXiv:2203.15556, sections 3.1 and 3.2.
"""

from dataclasses import dataclass, field

import numpy as np

from helpers.scaling.law import FLOPS, observations, plain, positive


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """N_opt = N_1 C^a and D_opt = D_1 C^b, fitted through the best runs of several budgets.

    Attributes:
        compute, params, tokens, loss: the points that the lines were fitted to.
        parabolas: for each budget (c0, c1, c2) of loss = c0 + c1 x + c2 x^2, x = log N; approach 2.
        runs: the (params, compute, loss) behind those points.
    """

    a: float
    b: float
    N_1: float
    D_1: float
    compute: np.ndarray
    params: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray
    parabolas: tuple = ()
    runs: tuple = field(repr=False, default=(), compare=False)

    def optimal(self, compute):
        """Return (params, tokens) for `compute` FLOPs."""
        compute = positive("compute", compute)
        return plain(self.N_1 * compute**self.a), plain(self.D_1 * compute**self.b)

    def _repr_png_(self):
        from helpers.plots.agreement import frontier

        return frontier(self)._repr_png_()


def isoflop(params, compute, loss) -> Frontier:
    """Approach 2: fit a parabola of loss over log N per budget, and a line through their minima.

    Args:
        params, compute, loss: one number for each run. The `compute` of one budget may vary by 1 %.

    Raises:
        ValueError: a value that is not positive and finite (the message names the row), a budget
            with fewer than three sizes, a parabola without a minimum between its sizes, or fewer
            than two budgets.
    """
    params, compute, loss = observations(params=params, compute=compute, loss=loss)
    order = np.argsort(compute, kind="stable")
    steps = np.flatnonzero(np.diff(np.log(compute[order])) > 0.01) + 1
    budgets, sizes, losses, parabolas = [], [], [], []
    for rows in np.split(order, steps):
        budget, x = float(np.exp(np.log(compute[rows]).mean())), np.log(params[rows])
        if len(np.unique(x)) < 3:
            raise ValueError(f"budget {budget:.3g} has fewer than three sizes: train more sizes")
        middle = x.mean()
        c2, c1, c0 = np.polyfit(x - middle, loss[rows], 2)
        lowest = middle - c1 / (2 * c2) if c2 > 0 else np.inf
        if not x.min() <= lowest <= x.max():
            raise ValueError(
                f"budget {budget:.3g} has no minimum between its sizes: train other sizes"
            )
        budgets.append(budget)
        sizes.append(np.exp(lowest))
        losses.append(c0 - c1**2 / (4 * c2))
        parabolas.append((c0 - c1 * middle + c2 * middle**2, c1 - 2 * c2 * middle, c2))
    return through(budgets, sizes, losses, tuple(parabolas), (params, compute, loss))


def envelope(params, compute, loss, *, budgets: int = 1500) -> Frontier:
    """Approach 1: at each of many budgets, take the size whose training curve is lowest.

    Args:
        params: N of each curve.
        compute, loss: for each curve a list of FLOPs spent so far, rising, and of the loss there.
            The loss is interpolated linearly over log C.
        budgets: how many, equally spaced on a logarithmic axis.

    Raises:
        ValueError: fewer than two curves, values that are not positive, compute that does not rise,
            or fewer than two sizes that are ever the best.
    """
    params = positive("params", params)
    if len(params) < 2 or not len(params) == len(compute) == len(loss):
        raise ValueError(
            "an envelope needs two curves or more, each with its params, compute and loss"
        )
    curves = []
    for number, (spent, values) in enumerate(zip(compute, loss, strict=True)):
        spent, values = observations(compute=spent, loss=values)
        if (np.diff(spent) <= 0).any():
            raise ValueError(f"curve {number}: compute must rise")
        curves.append((np.log(spent), values))
    low, high = min(x[0] for x, _ in curves), max(x[-1] for x, _ in curves)
    at = np.linspace(low, high, budgets)
    table = np.array([np.interp(at, x, y, left=np.inf, right=np.inf) for x, y in curves])
    best = table.argmin(0)
    lowest = table[best, np.arange(budgets)]
    # Leave out the smallest and the largest size: a smaller or larger one could be better.
    inner = np.isfinite(lowest) & (params[best] > params.min()) & (params[best] < params.max())
    if len(np.unique(best[inner])) < 2:
        raise ValueError(
            "only one size, or none, is the best at some budget without being the smallest or "
            "the largest: train more sizes"
        )
    return through(np.exp(at[inner]), params[best[inner]], lowest[inner], (), ())


def through(compute, params, loss, parabolas, runs) -> Frontier:
    """Fit the line through the points on logarithmic axes; tokens are C / (6 N)."""
    compute, params, loss = (np.asarray(v, dtype=np.float64) for v in (compute, params, loss))
    if len(compute) < 2:
        raise ValueError("a frontier needs at least two budgets")
    a, height = np.polyfit(np.log(compute), np.log(params), 1)
    return Frontier(
        a=float(a),
        b=float(1 - a),
        N_1=float(np.exp(height)),
        D_1=float(np.exp(-height) / FLOPS),
        compute=compute,
        params=params,
        tokens=compute / (FLOPS * params),
        loss=loss,
        parabolas=parabolas,
        runs=runs,
    )
