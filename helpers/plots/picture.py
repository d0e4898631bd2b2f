"""A Matplotlib figure that draws itself in a notebook, without pyplot and its list of figures."""

import sys

from matplotlib.figure import Figure

from helpers.plots.alt import describe
from helpers.plots.crisp import crisp
from helpers.plots.style import DPI, HEIGHT, WIDTH, course_style


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
