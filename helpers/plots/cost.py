"""Times of collectives by size: measured ones as dots, predicted ones as lines."""

from collections.abc import Mapping, Sequence

from helpers.plots.picture import Picture
from helpers.plots.style import RANK_COLORS

Points = Sequence[tuple[float, float]]  # (bytes, seconds)


def costs(predicted: Mapping[str, Points], fitted: Mapping[str, Points], others) -> Picture:
    """A line and its dots for each call.

    Args:
        predicted: by the call's name, from small to large.
        fitted: what was measured, and the prediction was fitted to: full dots.
        others: what was measured besides: hollow dots.
    """
    figure = Picture(figsize=(5.2, 3.4), dpi=80, layout="constrained")
    axes = figure.subplots()
    for number, (name, line) in enumerate(predicted.items()):
        color = RANK_COLORS[number % len(RANK_COLORS)]
        axes.plot(*zip(*line, strict=True), color=color, label=name)
        for face, points in ((color, fitted.get(name)), ("none", others.get(name))):
            if points:
                axes.plot(*zip(*points, strict=True), "o", color=color, markerfacecolor=face)
    # the dots have no colour of their own in the legend: it says what full and hollow mean
    style = {"ls": "none", "marker": "o", "color": "#666666"}
    axes.plot([], [], label="measured, fitted", **style)
    if others:
        axes.plot([], [], markerfacecolor="none", label="measured, not fitted", **style)
    axes.set(xscale="log", yscale="log", xlabel="payload (bytes)", ylabel="seconds")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    return figure
