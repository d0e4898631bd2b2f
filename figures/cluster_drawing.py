"""A cell is a cluster: what happens when a cell calls `launch`, in one picture.

Lengths are in tenths of an inch, so that the width of text is known.
"""

import math

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from helpers.plots.style import RANK_COLORS

INK, GREY, LINE, PANEL, PAPER = "#1f2933", "#5b6775", "#c3ccd6", "#f3f5f8", "#ffffff"
PURPLE, BLUE, RED = "#8250df", "#0550ae", "#b42318"
MONO = "DejaVu Sans Mono"
WIDTH, HEIGHT = 94.0, 57.0
CODE_SIZE = 9.4  # points

CELL = (
    ((PURPLE, "def"), (BLUE, " sum_ranks"), (INK, "(worker, x):")),
    ((INK, "    t = torch.full(("), (BLUE, "4"), (INK, ",), x + worker.rank)")),
    ((INK, "    dist.all_reduce(t)"),),
    ((PURPLE, "    return"), (INK, ' {"sum": t['), (BLUE, "0"), (INK, "].item()}")),
    (),
    (
        (INK, "runs = launch(sum_ranks, workers="),
        (BLUE, "4"),
        (INK, ", x="),
        (BLUE, "1.0"),
        (INK, ")"),
    ),
)


def draw() -> Figure:
    figure = Figure(figsize=(WIDTH / 10, HEIGHT / 10), facecolor=PANEL)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    words(axes, 3, 51.8, "A cell is a cluster", size=17, weight="bold")
    words(axes, 91, 51.8, "one function, four real processes, data back in the notebook",
          size=11, color=GREY, ha="right")  # fmt: skip
    cell(axes)
    output(axes)
    server(axes)
    ranks(axes)
    return figure


def words(axes, x, y, text, size=9.4, color=INK, **style):
    axes.text(x, y, text, size=size, color=color, zorder=6, **style)


def spans(axes, x, y, parts, size):
    """Monospaced text in several colours, side by side."""
    for color, text in parts:
        shown = text.lstrip(" ")  # what is drawn has no leading blanks, and no trailing ones
        begin = x + 0.602 * size / 7.2 * (len(text) - len(shown))
        words(axes, begin, y, shown, size, color, family=MONO)
        x += 0.602 * size / 7.2 * len(text)


def box(axes, x, y, width, height, face=PAPER, edge=LINE, line=1.2):
    style = "round,pad=0,rounding_size=0.9"
    patch = FancyBboxPatch((x, y), width, height, boxstyle=style, fc=face, ec=edge, lw=line)
    axes.add_patch(patch)


def arrow(axes, start, end, color=INK, line=1.8):
    patch = FancyArrowPatch(
        start, end, arrowstyle="-|>", mutation_scale=13, color=color, lw=line, shrinkA=0, shrinkB=0
    )
    axes.add_patch(patch).set_zorder(3)


def cell(axes):
    """The notebook's cell, at the upper left."""
    words(axes, 3, 47.4, "a notebook cell", 10.5, GREY, weight="bold")
    box(axes, 3, 29.2, 38, 17)
    axes.plot([4, 4], [30.3, 45.1], color="#0969da", lw=3.5, solid_capstyle="butt")
    for number, line in enumerate(CELL):
        spans(axes, 5.4, 43.2 - 2.5 * number, line, CODE_SIZE)


def output(axes):
    """The call's output, as the notebook shows it, at the lower left."""
    words(axes, 3, 26.2, "its output", 10.5, GREY, weight="bold")
    box(axes, 3, 3, 38, 22)
    size = 8.6
    spans(axes, 5, 22.1, ((RANK_COLORS[2], "[rank 2]"), (INK, " a print, live")), size)
    left, bottom = 6, 8.6
    axes.plot([left, left, left + 12.5], [bottom + 11, bottom, bottom], color=GREY, lw=1)
    for rank, color in enumerate(RANK_COLORS[:4]):
        steps = [0.5 * t for t in range(24)]
        loss = [1.2 + 8.8 * math.exp(-t / (2.2 + 0.5 * rank)) for t in steps]
        axes.plot([left + 0.6 + t for t in steps], [bottom + y for y in loss], color=color, lw=1.6)
    words(axes, left + 11.9, bottom + 8.9, "loss, live", 8.6, GREY, ha="right")
    words(axes, 21, 18.2, "runs[0]", size, family=MONO)
    words(axes, 21, 16.0, "{'sum': 10.0}", size, GREY, family=MONO)
    words(axes, 21, 13.0, 'runs.column("sum")', size, family=MONO)
    words(axes, 21, 10.8, "[10.0, 10.0, 10.0, 10.0]", size, GREY, family=MONO)
    words(axes, 21, 7.8, "runs.frame()", size, family=MONO)
    spans(axes, 5, 4.9, ((RED, "WorkerError: rank 2 raised ValueError: …"),), size)


def server(axes):
    """The clean server process, in the middle, with its input and its output."""
    box(axes, 47.8, 32.7, 13.4, 10, edge=INK, line=1.5)
    words(axes, 54.5, 39.6, "clean server", 10, weight="bold", ha="center")
    words(axes, 54.5, 36.1, "has torch, but\nno CUDA and no\nnotebook data", 8.4, GREY,
          ha="center", va="center", linespacing=1.25)  # fmt: skip
    arrow(axes, (41.5, 37.7), (47.4, 37.7))
    words(axes, 44.3, 39.0, "start", 9, GREY, ha="center")
    words(axes, 54.5, 44.0, "forks in milliseconds", 9, GREY, ha="center")

    arrow(axes, (67.5, 14), (41.6, 14))
    words(axes, 54.5, 15.4, "results, logs, prints, errors", 9.6, ha="center")
    words(axes, 54.5, 11.4, "live, by rank", 9, GREY, ha="center")


def ranks(axes):
    """Four processes, and the group that joins them."""
    words(axes, 68, 47.4, "4 ranks, one process group", 10.5, GREY, weight="bold")
    box(axes, 68, 3, 23, 43.2, face="#e6ebf1")
    left, width, height, bus = 71.5, 14, 6.4, 88.6
    middles = [41.2 - 8.3 * rank for rank in range(4)]
    axes.plot([bus, bus], [middles[-1], middles[0]], color=INK, lw=2.2)
    for rank, (middle, color) in enumerate(zip(middles, RANK_COLORS[:4], strict=True)):
        box(axes, left, middle - height / 2, width, height, edge=color, line=2)
        words(
            axes, left + 1.1, middle + 1.3, f"rank {rank}", 10.5, color, weight="bold", va="center"
        )
        words(
            axes, left + 1.1, middle - 1.4, f"t = {rank + 1}.0 → 10.0", 9, family=MONO, va="center"
        )
        axes.plot([left + width, bus], [middle, middle], color=INK, lw=2.2)
        axes.plot([bus], [middle], "o", color=INK, ms=6.5)
        arrow(axes, (61.7, 40.4 - 1.8 * rank), (left - 0.4, middle), color, 1.6)
    words(axes, 79.5, 8.2, "dist.all_reduce(t)", 9.4, family=MONO, ha="center")
    words(axes, 79.5, 5.2, "gloo on the CPU, NCCL on GPUs", 8.4, GREY, ha="center")
