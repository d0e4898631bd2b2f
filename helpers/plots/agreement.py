"""Measured beside predicted: costs of collectives, equal trainings, fits of scaling laws."""

from collections.abc import Mapping, Sequence

import numpy as np

from helpers.plots.curve import curves
from helpers.plots.picture import Picture, canvas, panels
from helpers.plots.style import (
    GREY,
    INK,
    PAPER,
    PROGRAM_COLORS,
    SERIES_COLORS,
    colors_of,
    course_style,
    shades,
)

Points = Sequence[tuple[float, float]]  # (bytes, seconds)


def costs(predicted: Mapping[str, Points], fitted: Mapping[str, Points], others) -> Picture:
    """Draw times of collectives by size: a line and its dots for each collective.

    Args:
        predicted: by the name of the collective, from small to large.
        fitted: the measurements behind the prediction: full dots.
        others: more measurements, which the fit did not use: hollow dots.
    """
    labels = {"xlabel": "payload (bytes)", "ylabel": "seconds"}
    with canvas(width=5.6, height=3.4, **labels) as axes:
        colors = colors_of(predicted)
        for name, line in predicted.items():
            color = colors[name]
            axes.plot(*zip(*line, strict=True), color=color, label=name)
            for face, points in ((color, fitted.get(name)), (PAPER, others.get(name))):
                if points:
                    axes.plot(*zip(*points, strict=True), "o", color=color, markerfacecolor=face)
        # These dots have no colour of their own: they explain full and hollow in the legend.
        style = {"ls": "none", "marker": "o", "color": GREY}
        axes.plot([], [], label="measured, fitted", **style)
        if others:
            axes.plot([], [], markerfacecolor=PAPER, label="measured, not fitted", **style)
        axes.set(xscale="log", yscale="log")
        axes.legend()
    return axes.figure


def equivalence(
    name: str,
    one_process: Sequence[float],
    ranks: Sequence[float],
    differences: Mapping[str, Sequence[float]],
    tolerance: float,
) -> Picture:
    """Compare two trainings that must be equal: their losses, and their differences by step.

    Args:
        name: of the training on ranks.
        one_process, ranks: the losses by step.
        differences: "loss", "gradients", … -> the largest absolute difference by step. Zeros are
            drawn at the bottom of the logarithmic axis. A dashed line is the tolerance.
    """
    picture = panels(2, width=7.6, height=2.8)
    left, right = picture.axes
    seen = [v for values in differences.values() for v in values if v > 0]
    floor = min([*seen, tolerance]) / 10
    raised = {what: [max(v, floor) for v in values] for what, values in differences.items()}
    reference = {"one process": {"lw": 5, "alpha": 0.6, "marker": ""}}
    own = {name: {"color": PROGRAM_COLORS["ours"], "marker": ""}}
    losses = {"one process": list(one_process), name: list(ranks)}
    above = {"xlabel": "step", "key": "above"}
    curves(losses, ylabel="loss", styles=reference | own, on=left, **above)
    curves(
        raised,
        log="y",
        ylabel="largest difference",
        hlines={"tolerance": tolerance},
        styles={what: {"ms": 3, "lw": 1} for what in raised},
        on=right,
        **above,
    )
    return picture


def fit_quality(params, observed, predicted, exponents=None):
    """Draw how well a scaling law fits: predicted over observed loss, the bootstraps' exponent a.

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
    """Draw the compute-optimal frontier: the budgets' IsoFLOP parabolas, if any; the best sizes.

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
