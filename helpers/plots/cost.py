"""Times of collectives by size: measured times as dots, predicted times as lines."""

from collections.abc import Mapping, Sequence

from helpers.plots.panel import canvas
from helpers.plots.picture import Picture
from helpers.plots.style import GREY, PAPER, colors_of, course_style

Points = Sequence[tuple[float, float]]  # (bytes, seconds)


def costs(predicted: Mapping[str, Points], fitted: Mapping[str, Points], others) -> Picture:
    """Draw a line and its dots for each collective.

    Args:
        predicted: by the name of the collective, from small to large.
        fitted: the measurements behind the prediction: full dots.
        others: more measurements, which the fit did not use: hollow dots.
    """
    with course_style():
        axes, picture = canvas(width=5.6, height=3.4)
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
        axes.set(xscale="log", yscale="log", xlabel="payload (bytes)", ylabel="seconds")
        axes.legend()
    return picture
