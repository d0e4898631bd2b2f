"""The course's look: colours with one meaning each, sizes, and Matplotlib's settings.

A picture uses a colour for its meaning, so that a reader learns it once:

    ranks      Okabe and Ito's eight colours, in rank order
    work       compute, forward, backward, optimizer, communication, idle
    memory     the kinds of bytes on a rank: parameters, gradients, optimizer state, activations
    sources    measured, formula, published, simulated; each has its own mark and line, too
    programs   ours, PyTorch, Accelerate, DeepSpeed, MPI, one process (the reference, grey)
    series     everything else, in order of appearance: Paul Tol's "bright" colours

`look` reads the meaning from the name of a series: "rank 2, measured" has the colour of rank 2
and the mark of a measurement. Within each family the colours stay apart for colour-blind readers.

Sources: Okabe and Ito 2008, "Color Universal Design"; Tol 2021, "Colour Schemes",
SRON/EPS/TN/09-002.
"""

import re
from contextlib import contextmanager

RANK_COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#999933",
    "#666666",
)
SERIES_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#4d4d4d")

INK = "#222222"  # text, and lines that carry the message
GREY = "#767676"  # annotations, guides, references
FAINT = "#d9d9d9"  # what stays in the background
PAPER = "#ffffff"  # always opaque: a dark page must not shine through

WORK_COLORS = {
    "compute": "#332288",
    "forward": "#332288",
    "backward": "#cc6677",
    "optimizer": "#ddcc77",
    "communication": "#44aa99",
    "idle": "#dddddd",
    "range": "#bbbbbb",
}
MEMORY_COLORS = {  # dark: kept on the rank, light: for a short time
    "parameters": "#1f5a99",
    "gathered": "#8fc1ea",  # parameters of all ranks
    "gradients": "#f2a08c",
    "gradient shard": "#b2392b",
    "optimizer": WORK_COLORS["optimizer"],
    "master copies": "#3d3600",
    "activations": "#8a8a8a",
}
SOURCE_COLORS = {
    "measured": "#1b4965",
    "formula": "#767676",
    "published": "#8c510a",
    "simulated": "#7b5ea7",
}
PROGRAM_COLORS = {
    "ours": "#117733",
    "PyTorch": "#ee7733",
    "Accelerate": "#33bbee",
    "DeepSpeed": "#0077bb",
    "MPI": "#882255",
    "one process": "#999999",
}
# Words that mean a colour at the beginning of a name: "no all-reduce" is not an all-reduce.
WORDS = {
    **WORK_COLORS,
    "all-reduce": WORK_COLORS["communication"],
    "waiting": WORK_COLORS["idle"],
    "wait": WORK_COLORS["idle"],
    **PROGRAM_COLORS,
}
SOURCE_LINES = {  # a mark, a line
    "measured": ("o", "-"),
    "formula": ("", "--"),
    "published": ("D", ""),
    "simulated": ("s", ":"),
}
FEW = 25  # points; a curve of more is a line without marks

DPI = 80  # dots on the page; a picture has twice as many pixels
WIDTH, HEIGHT = 6.2, 2.8  # inches, of one plot
SMALL = 9  # points, of a second text; none is smaller: a slide shows it at 14 pixels

SETTINGS = {
    "font.family": "DejaVu Sans",  # Matplotlib brings it along: the same on every machine
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.dpi": DPI,
    "figure.figsize": (WIDTH, HEIGHT),
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "savefig.transparent": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.08,  # inches
    "figure.constrained_layout.h_pad": 0.08,
    "image.cmap": "viridis",
}


@contextmanager
def course_style():
    """Use the course's settings inside the block; restore the caller's settings afterwards."""
    import matplotlib
    from matplotlib.rcsetup import cycler

    with matplotlib.rc_context({**SETTINGS, "axes.prop_cycle": cycler(color=SERIES_COLORS)}):
        yield


def rank_color(rank: int) -> str:
    """The colour of a rank; ranks from eight on start again."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def meaning(name: str) -> str | None:
    """The colour that the words of a name mean, or None if they mean none."""
    if rank := re.search(r"\brank (\d+)\b", name):
        return rank_color(int(rank[1]))
    for word, color in WORDS.items():
        if re.match(rf"{re.escape(word)}(?![\w-])", name, re.IGNORECASE):
            return color
    source = source_of(name)
    return SOURCE_COLORS[source] if source else None


def source_of(name: str) -> str | None:
    """The source that a name mentions: measured, formula, published or simulated."""
    return next((s for s in SOURCE_LINES if re.search(rf"\b{s}\b", name, re.IGNORECASE)), None)


def colors_of(names) -> dict[str, str]:
    """Name -> colour: the one that it means, else the next free colour of a series.

    Several measured series need several colours: then the source gives the mark and the line only.
    """
    known = {name: meaning(name) for name in names}
    for source, color in SOURCE_COLORS.items():
        same = [name for name in known if known[name] == color and source_of(name) == source]
        if len(same) > 1:
            known |= dict.fromkeys(same)
    free = iter(SERIES_COLORS * (1 + len(known) // len(SERIES_COLORS)))
    return {name: color or next(free) for name, color in known.items()}


def look(name: str, points: int) -> dict:
    """The mark and the line of a series, as Matplotlib's keywords, by the source in its name."""
    source = source_of(name)
    mark, line = SOURCE_LINES.get(source, ("o", "-"))
    if points > FEW and line:
        mark = ""
    hollow = {"markerfacecolor": PAPER} if source == "published" else {}
    return {"marker": mark, "linestyle": line or "none", **hollow}


def shades(count: int) -> list[str]:
    """Colours of an ordered quantity, from small (dark) to large (light).

    The lightest shades of viridis are left out: on white paper they disappear.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.82 * k / max(count - 1, 1))) for k in range(count)]


def lightness(color) -> float:
    """How light a colour is to the eye, from 0 (black) to 1 (white)."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def readable_on(color) -> str:
    """Black or white: whichever is easier to read on this colour."""
    return "black" if lightness(color) > 0.5 else "white"
