"""The course's style for figures that `matplotlib.pyplot` makes."""

from helpers.plots import style
from helpers.plots.alt import describe
from helpers.plots.crisp import crisp


def use():
    """Draw every Matplotlib figure of this session in the course's style.

    The functions of `helpers.plots` need no such call: they use the style for their own pictures
    alone. Call `plots.use()` once in a notebook that calls pyplot itself. Figures then have the
    course's fonts and colours, twice the pixels, and an alternative text: `figure.alt`, if you set
    it, else a description. `matplotlib.rcdefaults()` undoes the settings.
    """
    style.apply()
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    # The inline backend installs its own formatter when it is first loaded: load it before ours.
    from matplotlib import pyplot  # noqa: F401
    from matplotlib.figure import Figure

    try:
        import matplotlib_inline.backend_inline  # noqa: F401
    except ImportError:
        pass
    style.apply()
    shell.display_formatter.formatters["image/png"].for_type(Figure, png_and_metadata)


def png_and_metadata(figure):
    """What Jupyter's formatter of PNGs returns: the picture, and its size and alternative text."""
    if not figure.axes and not figure.lines:
        return None
    tight = {} if figure.get_layout_engine() else {"bbox_inches": "tight"}
    png, size = crisp(figure, **tight)
    return png, {**size, "alt": getattr(figure, "alt", "") or describe(figure)}
