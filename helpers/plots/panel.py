"""Several plots in one picture, side by side."""

from helpers.plots.style import HEIGHT, WIDTH


def panels(columns: int = 2, rows: int = 1, *, width: float = 0, height: float = 0, **options):
    """Make a picture with empty plots; `picture.axes` has them, row by row.

    Give an axes to a function of this package: `plots.curves(data, on=picture.axes[1])`.

    Args:
        width, height: inches; by default 3.9 and 2.8 for each plot.
        options: those of Matplotlib's `Figure.subplots`, `sharey=True` for example.
    """
    from helpers.plots.picture import Picture

    picture = Picture(figsize=(width or 3.9 * columns, height or HEIGHT * rows))
    picture.subplots(rows, columns, **options)
    return picture


def canvas(on=None, *, width: float = WIDTH, height: float = HEIGHT):
    """The axes to draw on, and their picture: `on`, or the axes of a new picture."""
    if on is not None:
        return on, on.figure
    picture = panels(1, width=width, height=height)
    return picture.axes[0], picture
