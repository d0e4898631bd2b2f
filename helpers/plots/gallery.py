"""Rows of small pictures: digits, and what a model makes of them."""

from collections.abc import Mapping

from helpers.plots.alt import headed
from helpers.plots.labels import name_rows
from helpers.plots.panel import canvas
from helpers.plots.style import WIDTH, course_style

GAP = 1  # pixels between two pictures


def pictures(rows: Mapping, *, title: str = "", width: float = WIDTH, alt: str = ""):
    """Draw grey pictures side by side, one row for each name.

    Args:
        rows: name -> pictures (n, H, W), from 0 (white) to 1 (black); each row has the same size of
            pictures, and any number of them.
        alt: the alternative text; by default it names and counts the rows.

    Raises:
        ValueError: there is nothing to draw, or the pictures differ in size.
    """
    import numpy as np

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
    with course_style():
        height = 0.8 * width * sheet.shape[0] / sheet.shape[1] + 0.4 * bool(title)
        axes, figure = canvas(width=width, height=height)
        axes.imshow(sheet, cmap="Greys", vmin=0, vmax=1)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        middles = [place * (high + GAP) + (high - 1) / 2 for place in range(len(found))]
        name_rows(axes, dict(zip(middles, found, strict=True)))
        axes.set_xticks([])
        axes.set_title(title)
    told = "; ".join(f"{name}: {len(row)}" for name, row in found.items())
    axes.words = alt or headed(title, f"Rows of pictures of {high} by {wide} pixels. {told}.")
    return figure
