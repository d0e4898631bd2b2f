"""Values over two dims: a table as colours, rows of small pictures, lines of equal value."""

from collections.abc import Mapping, Sequence

import numpy as np

from helpers.plots.labels import name_rows
from helpers.plots.picture import canvas
from helpers.plots.style import INK, PAPER, SMALL, WIDTH, readable_on, shades

GAP = 1  # pixels between two pictures


def heat(
    rows,
    *,
    numbers: str = "",
    columns: Mapping[float, str] | Sequence[str] | None = None,
    names: Mapping[float, str] | Sequence[str] | None = None,
    cut_columns: int = 0,
    cut_rows: int = 0,
    limits: tuple[float | None, float | None] = (None, None),
    cmap: str = "viridis",
    **frame,
):
    """Draw a matrix, one coloured cell for each number.

    Args:
        rows: (R, C): a sequence of rows, an array or a tensor.
        numbers: a format such as "{:.0f}" writes each number into its cell.
        columns, names: the labels of columns and rows: one for each, or place -> label.
        cut_columns, cut_rows: draw a line after so many columns or rows, between ranks for example.
        limits: the numbers of the first and the last colour.
        frame: title, xlabel, ylabel, on, width, height, alt, as `helpers.plots.picture.canvas`.

    Raises:
        ValueError: there is nothing to draw, or the rows differ in length.
    """
    values = np.asarray([np.asarray(row, dtype=float) for row in rows])
    if values.ndim != 2 or not values.size:
        raise ValueError(f"heat draws a matrix; this has the shape {values.shape}")
    high, wide = values.shape
    seen = values[np.isfinite(values)]
    told = f"colours from {seen.min():.2g} to {seen.max():.2g}" if seen.size else "no number"
    with canvas(f"A heat map of {high} rows and {wide} columns, {told}.", **frame) as axes:
        shown = axes.imshow(values, cmap=cmap, aspect="auto", vmin=limits[0], vmax=limits[1])
        axes.grid(visible=False)
        ticks(axes.set_xticks, columns)
        ticks(axes.set_yticks, names)
        if numbers:
            write_numbers(axes, shown, values, numbers)
        for place in range(cut_columns, wide, cut_columns) if cut_columns else ():
            axes.axvline(place - 0.5, color=PAPER, lw=3)
        for place in range(cut_rows, high, cut_rows) if cut_rows else ():
            axes.axhline(place - 0.5, color=PAPER, lw=3)
    return axes.figure


def ticks(place, labels):
    rows = labels if isinstance(labels, Mapping) else dict(enumerate(labels or ()))
    place(list(rows), list(rows.values()))


def write_numbers(axes, shown, values, form):
    """Each number in its cell, in black or white: whichever stands out more."""
    style = {"ha": "center", "va": "center", "fontsize": SMALL}
    for row, numbers in enumerate(values):
        for column, value in enumerate(numbers):
            color = readable_on(shown.cmap(shown.norm(value)))
            axes.text(column, row, form.format(value), color=color, **style)


def pictures(rows: Mapping, **frame):
    """Draw grey pictures side by side, one row for each name: digits, and a model's digits.

    Args:
        rows: name -> pictures (n, H, W), from 0 (white) to 1 (black); each row has the same size of
            pictures, and any number of them.
        frame: title, on, width, height, alt, as `helpers.plots.picture.canvas` has them.

    Raises:
        ValueError: there is nothing to draw, or the pictures differ in size.
    """
    found = {name: np.asarray(row, dtype=float) for name, row in rows.items()}
    sizes = {row.shape[1:] for row in found.values()}
    if len(sizes) != 1 or len(next(iter(sizes))) != 2 or not all(map(len, found.values())):
        shapes = ", ".join(f"{name} {row.shape}" for name, row in found.items()) or "no rows"
        raise ValueError(f"pictures are (n, H, W), of one H and W, not {shapes}")
    high, wide = next(iter(sizes))
    most = max(map(len, found.values()))
    sheet = np.full((len(found) * (high + GAP) - GAP, most * (wide + GAP) - GAP), np.nan)
    for place, row in enumerate(found.values()):
        for column, picture in enumerate(row):
            top, left = place * (high + GAP), column * (wide + GAP)
            sheet[top : top + high, left : left + wide] = picture
    told = "; ".join(f"{name}: {len(row)}" for name, row in found.items())
    tall = 0.8 * frame.get("width", WIDTH) * sheet.shape[0] / sheet.shape[1]
    size = {"height": tall + 0.4 * bool(frame.get("title"))}
    words = f"Rows of pictures of {high} by {wide} pixels. {told}."
    with canvas(words, **size | frame) as axes:
        axes.imshow(sheet, cmap="Greys", vmin=0, vmax=1)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        middles = [place * (high + GAP) + (high - 1) / 2 for place in range(len(found))]
        name_rows(axes, dict(zip(middles, found, strict=True)))
        axes.set_xticks([])
    return axes.figure


def contours(
    x: Sequence[float],
    y: Sequence[float],
    values,
    *,
    levels: Sequence[float],
    form: str = "%.3g",
    log: str = "",
    **frame,
):
    """Draw a line of equal value for each level, with its value on it.

    Args:
        x: (X,), y: (Y,): the grid.
        values: (Y, X): the value at each point of the grid.
        levels: the values that get a line, rising.
        form: how a level is written.
        log: the logarithmic axes: "", "x", "y" or "xy".
        frame: as for `heat`.

    Raises:
        ValueError: no level lies within the values.
    """
    from matplotlib.patheffects import withStroke

    values = np.asarray(values)
    crossed = [level for level in levels if values.min() < level < values.max()]
    if not crossed:
        raise ValueError(f"no level lies between {values.min():.3g} and {values.max():.3g}")
    said = ", ".join(form % level for level in crossed)
    over = f"{frame.get('xlabel', '')} and {frame.get('ylabel', '')}"
    with canvas(f"Lines of equal value, {said}, over {over}.", **frame) as axes:
        axes.set_xscale("log" if "x" in log else "linear")
        axes.set_yscale("log" if "y" in log else "linear")
        axes.grid(visible=False)
        lines = axes.contour(x, y, values, levels=crossed, colors=shades(len(crossed)))
        for label in axes.clabel(lines, crossed, fmt=form, fontsize=SMALL, colors=INK, inline=True):
            label.set_path_effects([withStroke(linewidth=3, foreground=PAPER)])
    return axes.figure
