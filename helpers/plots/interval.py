"""Values with their intervals, one row each."""

from collections.abc import Mapping

from helpers.plots.alt import headed, two_digits
from helpers.plots.curve import guides
from helpers.plots.panel import canvas
from helpers.plots.style import WIDTH, course_style, meaning


def intervals(
    rows: Mapping[str, tuple[float, float, float]],
    *,
    log: bool = False,
    xlabel: str = "",
    title: str = "",
    vlines: Mapping[str, float] | None = None,
    xlim=None,
    on=None,
    width: float = WIDTH,
    height: float = 0,
    alt: str = "",
):
    """Draw each value as a dot on the line of its interval.

    Args:
        rows: name -> (low, value, high).
        vlines: label -> value: a dashed guide with its label, a published value for example.
        log, on, alt: as in `helpers.plots.bar.bars`.

    Raises:
        ValueError: there is nothing to draw, or a value lies outside its interval.
    """
    if not rows:
        raise ValueError("no rows to draw")
    for name, (low, value, high) in rows.items():
        if not low <= value <= high:
            raise ValueError(f"{name!r}: {value} lies outside its interval, {low} to {high}")
    with course_style():
        axes, picture = canvas(on, width=width, height=height or 1.0 + 0.34 * len(rows))
        for place, (name, (low, value, high)) in enumerate(rows.items()):
            color = meaning(name) or "#4477aa"
            axes.plot([low, high], [place, place], color=color, lw=2.5, alpha=0.5, label="_")
            axes.plot([value], [place], "o", color=color, ms=6, label="_")
        axes.set_xscale("log" if log else "linear")
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set(ylim=(len(rows) - 0.5, -0.5 - 0.7 * bool(vlines)), xlabel=xlabel, title=title)
        axes.tick_params(axis="y", length=0)
        if xlim is not None:
            axes.set_xlim(xlim)
        guides(axes, vlines or {}, {})
    said = (
        f"{n}: {two_digits(v)}, {two_digits(a)} to {two_digits(b)}" for n, (a, v, b) in rows.items()
    )
    head = f"Values with intervals{f', {xlabel}' if xlabel else ''}"
    axes.words = alt or headed(title, f"{head}. {'; '.join(said)}.")
    return picture
