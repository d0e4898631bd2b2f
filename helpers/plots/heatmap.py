"""A table of numbers as colours."""

from collections.abc import Mapping, Sequence

from helpers.plots.alt import headed
from helpers.plots.panel import canvas
from helpers.plots.style import HEIGHT, PAPER, SMALL, WIDTH, course_style, readable_on


def heat(
    rows,
    *,
    numbers: str = "",
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    columns: Mapping[float, str] | Sequence[str] | None = None,
    names: Mapping[float, str] | Sequence[str] | None = None,
    cut_columns: int = 0,
    cut_rows: int = 0,
    scale: str = "",
    limits: tuple[float | None, float | None] = (None, None),
    cmap: str = "viridis",
    on=None,
    width: float = WIDTH,
    height: float = HEIGHT,
    alt: str = "",
):
    """Draw a matrix, one coloured cell for each number.

    Args:
        rows: (R, C): a sequence of rows, an array or a tensor.
        numbers: a format such as "{:.0f}" writes each number into its cell.
        columns, names: the labels of columns and rows: one for each, or place -> label.
        cut_columns, cut_rows: draw a line after so many columns or rows, between ranks for example.
        scale: the label of a colour bar; without it there is none.
        limits: the numbers of the first and the last colour.
        on, alt: as in `helpers.plots.curve.curves`.

    Raises:
        ValueError: there is nothing to draw, or the rows differ in length.
    """
    import numpy as np

    values = np.asarray([np.asarray(row, dtype=float) for row in rows])
    if values.ndim != 2 or not values.size:
        raise ValueError(f"heat draws a matrix; this has the shape {values.shape}")
    with course_style():
        axes, picture = canvas(on, width=width, height=height)
        low, high = limits
        shown = axes.imshow(values, cmap=cmap, aspect="auto", vmin=low, vmax=high)
        axes.grid(visible=False)
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        ticks(axes.set_xticks, columns)
        ticks(axes.set_yticks, names)
        if numbers:
            write_numbers(axes, shown, values, numbers)
        for place in range(cut_columns, values.shape[1], cut_columns) if cut_columns else ():
            axes.axvline(place - 0.5, color=PAPER, lw=3)
        for place in range(cut_rows, values.shape[0], cut_rows) if cut_rows else ():
            axes.axhline(place - 0.5, color=PAPER, lw=3)
        if scale:
            picture.colorbar(shown, ax=axes, label=scale)
    rows, cells = values.shape
    size = f"A heat map of {rows} rows and {cells} columns"
    told = f", colours from {values.min():.2g} to {values.max():.2g}"
    axes.words = alt or headed(title, f"{size}{told}{f' ({scale})' if scale else ''}.")
    return picture


def ticks(place, labels):
    if labels is None:
        place([])
    elif isinstance(labels, Mapping):
        place(list(labels), list(labels.values()))
    else:
        place(range(len(labels)), list(labels))


def write_numbers(axes, shown, values, form):
    """Each number in its cell, in black or white: whichever stands out more."""
    style = {"ha": "center", "va": "center", "fontsize": SMALL}
    for row, numbers in enumerate(values):
        for column, value in enumerate(numbers):
            color = readable_on(shown.cmap(shown.norm(value)))
            axes.text(column, row, form.format(value), color=color, **style)
