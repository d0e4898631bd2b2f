"""A Matplotlib figure that draws itself in a notebook, without pyplot and its list of figures."""

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

    def _repr_mimebundle_(self, include=None, exclude=None):
        # Before the formatter that pyplot registers for every Figure: it knows no alternative text.
        png, metadata = self._repr_png_()
        return {"image/png": png, "text/plain": repr(self)}, {"image/png": metadata}

    def __repr__(self):
        return self.alt or describe(self)
