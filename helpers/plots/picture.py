"""A Matplotlib figure that draws itself in a notebook: sharp, small, with words; and its axes."""

import io
import sys
from contextlib import contextmanager

from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from helpers.plots.alt import describe, headed
from helpers.plots.style import DPI, HEIGHT, PAPER, WIDTH, course_style

BYTES = 55_000  # a committed picture may have 60 kB; the rest is slack for other fonts
PALETTES = (256, 128, 64, 32, 16)


class Picture(Figure):
    """A Figure in the course's style that Jupyter shows, whether or not pyplot has been used.

    The output has twice the pixels of its size on the page, and an alternative text for readers
    who do not see the picture. The text describes title, axes and series; set `alt` to write a
    better text. Jupyter keeps it in the output's metadata, and as the plain-text output.

    Args:
        figsize: inches; a page shows 80 dots an inch.
        alt: the alternative text.
        options: those of Matplotlib's `Figure`.
    """

    def __init__(
        self, figsize=(WIDTH, HEIGHT), *, alt="", dpi=DPI, layout="constrained", **options
    ):
        with course_style():
            super().__init__(figsize=figsize, dpi=dpi, layout=layout, **options)
        self.alt = alt

    def add_subplot(self, *args, **options):
        with course_style():
            return super().add_subplot(*args, **options)

    def add_axes(self, *args, **options):
        with course_style():
            return super().add_axes(*args, **options)

    def _repr_png_(self) -> tuple[bytes, dict]:
        """The PNG and its metadata, as Jupyter takes both: width, height, alt.

        An object with a picture passes them on: `return self.plot()._repr_png_()`.
        """
        png, size = crisp(self)
        return png, {**size, "alt": repr(self)}

    def __repr__(self):
        return self.alt or describe(self)


def register():
    """Tell a running IPython to draw each Picture by its own method.

    Once pyplot is imported, IPython draws every Figure with a formatter of its own, which writes
    small PNGs without an alternative text. A formatter for the subclass comes before it.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        shell.display_formatter.formatters["image/png"].for_type(Picture, Picture._repr_png_)


register()


def panels(columns: int = 2, rows: int = 1, *, width: float = 0, height: float = 0, **options):
    """Make a picture with empty plots; `picture.axes` has them, row by row.

    Give an axes to a function of this package: `plots.curves(data, on=picture.axes[1])`.

    Args:
        width, height: inches; by default 3.9 and 2.8 for each plot.
        options: those of Matplotlib's `Figure.subplots`, `sharey=True` for example.
    """
    picture = Picture(figsize=(width or 3.9 * columns, height or HEIGHT * rows))
    picture.subplots(rows, columns, **options)
    return picture


@contextmanager
def canvas(
    words: str = "",
    *,
    on=None,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    xlim=None,
    ylim=None,
    width: float = WIDTH,
    height: float = HEIGHT,
    alt: str = "",
):
    """Draw on axes inside a block, in the course's style. Functions pass their `frame` on to it.

    Args:
        words: what is drawn, for readers who do not see it; the title comes before them.
        on: the axes of another picture to draw on, of `panels` for example.
        title, xlabel, ylabel: text above, below and beside the axes.
        xlim, ylim: the ends of an axis; by default all that is drawn.
        width, height: of a new picture, in inches.
        alt: the alternative text, in place of `words`.

    Yields:
        The axes; `axes.figure` is the Picture.
    """
    with course_style():
        axes = panels(1, width=width, height=height).axes[0] if on is None else on
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title or axes.get_title())
        axes.words = alt or (headed(title, words) if words else getattr(axes, "words", ""))
        yield axes
        limits = {"xlim": xlim, "ylim": ylim}
        axes.set(**{name: ends for name, ends in limits.items() if ends is not None})


def crisp(figure, **options) -> tuple[bytes, dict[str, int]]:
    """Draw a figure as a PNG with twice its dots per inch, in few colours.

    A PNG with a palette has a third of the bytes of one in full colour. The number of colours
    falls from 256 to 16 until the picture has at most `BYTES` bytes.

    Args:
        options: those of Matplotlib's `savefig`.

    Returns:
        The PNG, and its `width` and `height` on the page in CSS pixels, as Jupyter's output
        metadata has them.

    Raises:
        ValueError: the figure has bars on a logarithmic axis. Such an axis has no zero, so the
            length of a bar means nothing.
    """
    from PIL import Image

    refuse_bars_on_log_axes(figure)
    stream = io.BytesIO()
    with course_style():
        figure.savefig(stream, format="png", dpi=2 * figure.dpi, facecolor=PAPER, **options)
    image = Image.open(stream).convert("RGB")
    return small_png(image), {"width": image.width // 2, "height": image.height // 2}


def small_png(image, limit: int = BYTES) -> bytes:
    """The image as a PNG with the largest palette that keeps it under `limit` bytes.

    If no palette is small enough, the result has the smallest one and is larger than `limit`.
    """
    from PIL import Image

    for colors in PALETTES:
        stream = io.BytesIO()
        few = image.quantize(colors, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(stream, format="png", optimize=True)
        if stream.tell() <= limit:
            break
    return stream.getvalue()


def refuse_bars_on_log_axes(figure):
    for axes in figure.axes:
        for bars in axes.containers:
            if isinstance(bars, BarContainer):
                upright = bars.orientation != "horizontal"
                if (axes.get_yscale() if upright else axes.get_xscale()) == "log":
                    raise ValueError(
                        "bars on a logarithmic axis: such an axis has no zero, so a bar's length "
                        "means nothing. Draw points: plots.bars(values, log=True)."
                    )
