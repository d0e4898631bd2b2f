"""Lines of equal value over two axes, each with a label that can be read."""

from collections.abc import Sequence

from helpers.plots.alt import headed
from helpers.plots.panel import canvas
from helpers.plots.style import HEIGHT, INK, PAPER, SMALL, WIDTH, course_style, shades


def contours(
    x: Sequence[float],
    y: Sequence[float],
    values,
    *,
    levels: Sequence[float],
    form: str = "%.3g",
    log: str = "",
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    on=None,
    width: float = WIDTH,
    height: float = HEIGHT,
    alt: str = "",
):
    """Draw a line for each level, with its value on it.

    Args:
        x: (X,), y: (Y,): the grid.
        values: (Y, X): the value at each point of the grid.
        levels: the values that get a line, rising.
        form: how a level is written.
        log: the logarithmic axes: "", "x", "y" or "xy".
        on, alt: as in `helpers.plots.curve.curves`.

    Raises:
        ValueError: no level lies within the values.
    """
    import numpy as np
    from matplotlib.patheffects import withStroke

    values = np.asarray(values)
    crossed = [level for level in levels if values.min() < level < values.max()]
    if not crossed:
        raise ValueError(f"no level lies between {values.min():.3g} and {values.max():.3g}")
    with course_style():
        axes, picture = canvas(on, width=width, height=height)
        axes.set_xscale("log" if "x" in log else "linear")
        axes.set_yscale("log" if "y" in log else "linear")
        axes.grid(visible=False)
        lines = axes.contour(x, y, values, levels=crossed, colors=shades(len(crossed)))
        for label in axes.clabel(lines, crossed, fmt=form, fontsize=SMALL, colors=INK, inline=True):
            label.set_path_effects([withStroke(linewidth=3, foreground=PAPER)])
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    said = ", ".join(form % level for level in crossed)
    own = f"Lines of equal value, {said}, over {xlabel} and {ylabel}."
    axes.words = alt or headed(title, own)
    return picture
