"""Boxes with labels: who holds what, the parts of a chip, blocks of memory, messages of a step."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from helpers.plots.labels import name_rows
from helpers.plots.panel import canvas
from helpers.plots.style import PAPER, course_style

EDGE, ARROW = "#444444", "#666666"


class Box(NamedTuple):
    """A rectangle; x goes to the right, y goes down, in the units of the picture's limits.

    Attributes:
        x, y: the upper left corner.
        label: in the middle of the box.
        edge, line: the frame's colour and width in points; a width of 0 draws no frame.
        dash: Matplotlib's style of the frame, "-" or ":".
        hatch: Matplotlib's pattern, "////" for example.
        alpha: 1 for the full colour; a label on a lower one is easier to read.
    """

    x: float
    y: float
    width: float
    height: float
    color: str = "none"
    label: str = ""
    edge: str = EDGE
    line: float = 0.6
    dash: str = "-"
    hatch: str = ""
    alpha: float = 1.0


class Text(NamedTuple):
    """Words at a place; `side` is Matplotlib's: "left" if the words begin there."""

    x: float
    y: float
    words: str
    side: str = "center"
    size: float = 9


def boxes(
    found: Iterable[Box],
    *,
    xlim: tuple[float, float],
    ylim: tuple[float, float],
    size: tuple[float, float] | None = None,
    on=None,
    rows: Mapping[float, str] | None = None,
    texts: Iterable[Text] = (),
    arrows: Iterable[tuple[tuple[float, float], tuple[float, float]]] = (),
    corner: float = 0.0,
    fontsize: float = 9,
    clear: bool = False,
    title: str = "",
    alt: str = "",
):
    """Draw boxes, words and arrows on axes without ticks.

    Args:
        xlim: the left and the right end of the picture.
        ylim: its top and its bottom.
        size: inches of a new picture, which the boxes fill from edge to edge.
        on: the axes of another picture to draw on, in place of a size.
        rows: place -> a name to the left of the boxes.
        arrows: (start, end), each as (x, y).
        corner: radius of the boxes' corners.
        fontsize: of the labels.
        clear: put each label on a patch of paper, where several colours meet below it.
        alt: the words for readers who do not see the picture.
    """
    from matplotlib.patches import FancyBboxPatch, Rectangle

    with course_style():
        axes, picture = canvas(on, width=(size or (1, 1))[0], height=(size or (1, 1))[1])
        if size:
            picture.set_layout_engine("none")
            axes.set_position([0, 0, 1, 1])
        paper = {"boxstyle": "round,pad=0.12", "fc": PAPER, "ec": "none", "alpha": 0.85}
        words = {
            "ha": "center",
            "va": "center",
            "fontsize": fontsize,
            "bbox": paper if clear else None,
        }
        for box in found:
            look = {"fc": box.color, "ec": box.edge, "lw": box.line, "ls": box.dash}
            look |= {"hatch": box.hatch, "alpha": box.alpha if box.alpha < 1 else None}
            place = (box.x, box.y), box.width, box.height
            if corner:
                style = f"round,pad=0,rounding_size={corner}"
                axes.add_patch(FancyBboxPatch(*place, boxstyle=style, **look))
            else:
                axes.add_patch(Rectangle(*place, **look))
            if box.label:
                middle = box.x + box.width / 2, box.y + box.height / 2
                axes.text(*middle, box.label, **words)
        for text in texts:
            axes.text(*text[:2], text.words, ha=text.side, va="center", fontsize=text.size)
        for start, end in arrows:
            axes.annotate(
                "", end, start, arrowprops={"arrowstyle": "->", "color": ARROW, "lw": 1.3}
            )
        axes.set(xlim=xlim, ylim=ylim[::-1], title=title)
        name_rows(axes, rows or {})
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
    axes.words = alt
    if on is None:
        picture.alt = alt
    return picture
