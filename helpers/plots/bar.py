"""Bars that start at zero; on a logarithmic axis, points."""

from collections.abc import Mapping

from helpers.plots.alt import headed, two_digits
from helpers.plots.curve import draw_key, guides
from helpers.plots.labels import name_rows, note
from helpers.plots.panel import canvas
from helpers.plots.style import FAINT, WIDTH, colors_of, course_style, meaning

ROW = 0.36  # inches


def bars(
    values: Mapping,
    *,
    log: bool = False,
    stacked: bool = False,
    xlabel: str = "",
    title: str = "",
    vlines: Mapping[str, float] | None = None,
    numbers: str = "",
    xlim=None,
    on=None,
    width: float = WIDTH,
    height: float = 0,
    alt: str = "",
):
    """Draw one horizontal bar for each name, or one group of bars.

    Args:
        values: name -> value; or name -> {series: value}, for one bar of each series and a key.
        log: a logarithmic axis, with points in place of bars: such an axis has no zero, so a
            bar's length would mean nothing.
        stacked: put the series of a group end to end in one bar, in their order.
        vlines: label -> value: a dashed guide with its label.
        numbers: a format such as "{:.0f} GB" writes each value beside its bar, or each sum
            beside its stacked bar.
        on: the axes of another picture to draw on, of `panels` for example.
        alt: the alternative text; by default a description.

    Raises:
        ValueError: there is nothing to draw; a value on a logarithmic axis is not positive; a
            logarithmic axis with stacked bars.
    """
    if not values:
        raise ValueError("no values to draw")
    grouped = {n: v if isinstance(v, Mapping) else {"": v} for n, v in values.items()}
    series = list(dict.fromkeys(name for group in grouped.values() for name in group))
    if log and any(v <= 0 for group in grouped.values() for v in group.values()):
        raise ValueError("a logarithmic axis shows positive values only")
    if log and stacked:
        raise ValueError("the parts of a stacked bar have no length on a logarithmic axis")
    rows = len(grouped) * (1 if stacked else max(len(series), 1))
    size = height or 0.9 + ROW * max(rows, 2) + 0.3 * bool(title)
    with course_style():
        axes, picture = canvas(on, width=width, height=size)
        colors = colors_of(series) if len(series) > 1 else {}
        step = 0.8 if stacked else 0.8 / len(series)
        ends = [0.0] * len(grouped)  # of the parts so far
        for number, name in enumerate(series):
            own = [
                (row, group[name]) for row, group in enumerate(grouped.values()) if name in group
            ]
            places = [row if stacked else row - 0.4 + step * (number + 0.5) for row, _ in own]
            lengths = [value for _, value in own]
            starts = [ends[row] for row, _ in own]
            rows_colors = [colors.get(name) or row_color(list(grouped)[row]) for row, _ in own]
            if log:
                axes.set_xscale("log")
                axes.scatter(lengths, places, c=rows_colors, s=46, label=name or "_", zorder=3)
            else:
                look = {"left": starts, "color": rows_colors, "label": name or "_"}
                axes.barh(places, lengths, 0.88 * step, **look)
            if stacked:
                for row, value in own:
                    ends[row] += value
            elif numbers:
                write(axes, numbers, lengths, places)
        if stacked and numbers:
            write(axes, numbers, ends, range(len(grouped)))
        name_rows(axes, list(grouped))
        axes.set(ylim=(len(grouped) - 0.5, -0.5 - 0.55 * bool(vlines)), xlabel=xlabel, title=title)
        if log:
            axes.grid(axis="y", color=FAINT)
        axes.margins(x=0.14 if numbers else 0.06)
        if xlim is not None:
            axes.set_xlim(xlim)
        guides(axes, vlines or {}, {})
        draw_key(axes, [], "right" if len(series) > 1 else "")
    axes.words = alt or words(grouped, xlabel, title, log)
    return picture


def write(axes, numbers: str, values, places):
    """Each value beside the end of its bar."""
    for value, place in zip(values, places, strict=True):
        note(axes, numbers.format(value), (value, place))


def row_color(name) -> str:
    return meaning(str(name)) or "#4477aa"


def words(grouped, xlabel, title, log) -> str:
    """What is drawn, in words."""
    rows = "; ".join(
        f"{name} " + ", ".join(f"{series} {two_digits(v)}".strip() for series, v in group.items())
        for name, group in grouped.items()
    )
    kind = "Points" if log else "Bars"
    axis = f" of {xlabel}{', logarithmic' if log else ''}" if xlabel else ""
    return headed(title, f"{kind}{axis}: {rows}.")
