"""Scaling laws drawn: how well a fit holds, IsoFLOP parabolas, and the compute-optimal frontier."""

import numpy as np

from helpers.plots.panel import panels
from helpers.plots.style import GREY, INK, SERIES_COLORS, course_style, shades


def fit_quality(params, observed, predicted, exponents=None):
    """Draw predicted over observed loss on the left, the bootstraps' exponent a on the right.

    Args:
        params, observed, predicted: one for each run; losses in nats.
        exponents: a of each bootstrap, or None for the left half alone.
    """
    count = 1 if exponents is None else 2
    picture = panels(count, width=7.4 if count == 2 else 4.2, height=3.0)
    left, *rest = picture.axes
    with course_style():
        dots = left.scatter(observed, predicted, c=np.log10(params), s=16)
        ends = [min(*observed, *predicted), max(*observed, *predicted)]
        left.plot(ends, ends, color=GREY, lw=0.8, zorder=0)
        left.set(xlabel="loss, nats", ylabel="fitted loss, nats")
        picture.colorbar(dots, ax=left, label="log10 of the parameters")
        for axes in rest:
            axes.hist(exponents, bins=30, color=SERIES_COLORS[0])
            axes.axvline(0.5, color=GREY, ls="--", lw=1)
            axes.set(xlabel="a, of N ~ C^a", ylabel="bootstraps")
    left.words = (
        f"Fitted over observed loss of {len(observed)} runs, {ends[0]:.2g} to {ends[1]:.2g} nats, "
        "with the diagonal; darker points are smaller models."
    )
    for axes in rest:
        low, high = np.percentile(exponents, [5, 95])
        axes.words = (
            f"A histogram of the exponent a over {len(exponents)} bootstraps; nine in ten lie "
            f"between {low:.2g} and {high:.2g}. A line marks 0.5."
        )
    return picture


def frontier(found):
    """Draw each budget's parabola on the left, if there are any; the best sizes on the right.

    Args:
        found: with compute, params, loss, parabolas, runs (params, compute, loss) and optimal(C).
    """
    wide = bool(found.parabolas)
    picture = panels(2 if wide else 1, width=7.6 if wide else 4.4, height=3.2)
    *left, right = picture.axes
    colors = shades(len(found.compute)) if wide else [SERIES_COLORS[0]] * len(found.compute)
    with course_style():
        for axes in left:
            parabolas(axes, found, colors)
        for compute, params, color in zip(found.compute, found.params, colors, strict=True):
            right.plot([compute], [params], "*" if wide else ".", ms=10 if wide else 3, color=color)
        line = np.geomspace(min(found.compute), max(found.compute), 50)
        right.plot(line, found.optimal(line)[0], color=GREY, lw=1, zorder=0)
        right.set(xscale="log", yscale="log", xlabel="compute, FLOPs", ylabel="parameters")
        right.set_title(f"N ~ C^{found.a:.3f}")
        if wide:  # beside the axes, where no point lies
            picture.legend(loc="outside right center", title="FLOPs")
    budgets = (
        f"{len(found.compute)} budgets from {min(found.compute):.2g} to {max(found.compute):.2g}"
    )
    for axes in left:
        axes.words = f"Loss over parameters, one parabola for each of {budgets} FLOPs."
    right.words = (
        f"The best number of parameters over compute, for {budgets} FLOPs, and the line "
        f"N ~ C^{found.a:.2f}; both axes are logarithmic."
    )
    return picture


def parabolas(axes, found, colors):
    """Loss over size: the runs of each budget, its parabola, and the lowest point."""
    params, compute, loss = found.runs
    for number, (budget, (c0, c1, c2)) in enumerate(
        zip(found.compute, found.parabolas, strict=True)
    ):
        color = colors[number]
        own = np.abs(np.log(compute / budget)) < 0.02
        x = np.linspace(np.log(params[own].min()), np.log(params[own].max()), 60)
        axes.plot(params[own], loss[own], "o", ms=3.5, color=color)
        axes.plot(np.exp(x), c0 + c1 * x + c2 * x**2, lw=1.2, color=color, label=f"{budget:.3g}")
        axes.plot([found.params[number]], [found.loss[number]], "*", ms=9, color=INK)
    axes.set(xscale="log", xlabel="parameters", ylabel="loss, nats")
