"""Scaling laws drawn: how well a fit holds, IsoFLOP parabolas, and the compute-optimal frontier."""

import numpy as np

from helpers.plots.picture import Picture
from helpers.plots.style import RANK_COLORS

FAINT = "#888888"


def fit_quality(params, observed, predicted, exponents=None):
    """Left predicted against observed loss, coloured by size; right the bootstraps' exponent a.

    Args:
        params, observed, predicted: one for each run; losses in nats.
        exponents: a of each bootstrap, or None for the left half alone.
    """
    figure = Picture(figsize=(7.2 if exponents is not None else 4.0, 3.0), dpi=80)
    figure.set_layout_engine("constrained")
    left, *rest = np.atleast_1d(figure.subplots(1, 1 if exponents is None else 2))
    dots = left.scatter(observed, predicted, c=np.log10(params), s=12, cmap="viridis")
    ends = [min(*observed, *predicted), max(*observed, *predicted)]
    left.plot(ends, ends, color=FAINT, lw=0.8, zorder=0)
    left.set(xlabel="loss, nats", ylabel="fitted")
    figure.colorbar(dots, ax=left, label="log10 params")
    for axes in rest:
        axes.hist(exponents, bins=30, color=RANK_COLORS[0])
        axes.axvline(0.5, color=FAINT, ls="--", lw=0.8)
        axes.set(xlabel="a, of N ~ C^a", ylabel="bootstraps")
    plain_axes(left, *rest)
    return figure


def frontier(found):
    """Left the parabolas of each budget, if there are; right the best sizes and the line.

    Args:
        found: with compute, params, loss, parabolas, runs (params, compute, loss) and optimal(C).
    """
    wide = bool(found.parabolas)
    figure = Picture(figsize=(7.4 if wide else 4.2, 3.2), dpi=80, layout="constrained")
    *left, right = np.atleast_1d(figure.subplots(1, 2 if wide else 1))
    for axes in left:
        parabolas(axes, found)
    for number, (compute, params) in enumerate(zip(found.compute, found.params, strict=True)):
        color = RANK_COLORS[number % len(RANK_COLORS)] if wide else RANK_COLORS[0]
        right.plot([compute], [params], "*" if wide else ".", ms=9 if wide else 2, color=color)
    line = np.geomspace(min(found.compute), max(found.compute), 50)
    right.plot(line, found.optimal(line)[0], color=FAINT, lw=1, zorder=0)
    right.set(xscale="log", yscale="log", xlabel="compute, FLOPs", ylabel="parameters")
    right.set_title(f"N ~ C^{found.a:.3f}", fontsize=10)
    if wide:  # beside the axes, where no point lies
        figure.legend(loc="outside right center", title="FLOPs", frameon=False, fontsize=8)
    plain_axes(*left, right)
    return figure


def parabolas(axes, found):
    """Loss over size: the runs of each budget, its parabola, and the lowest point."""
    params, compute, loss = found.runs
    for number, (budget, (c0, c1, c2)) in enumerate(
        zip(found.compute, found.parabolas, strict=True)
    ):
        color = RANK_COLORS[number % len(RANK_COLORS)]
        own = np.abs(np.log(compute / budget)) < 0.02
        x = np.linspace(np.log(params[own].min()), np.log(params[own].max()), 60)
        axes.plot(params[own], loss[own], "o", ms=3, color=color)
        axes.plot(np.exp(x), c0 + c1 * x + c2 * x**2, lw=1, color=color, label=f"{budget:.3g}")
        axes.plot([found.params[number]], [found.loss[number]], "*", ms=8, color="black")
    axes.set(xscale="log", xlabel="parameters", ylabel="loss, nats")


def plain_axes(*every):
    for axes in every:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
