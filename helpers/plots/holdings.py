"""Who holds what, as boxes: values around a collective, parts of a tensor, shards of a batch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from helpers.plots.alt import headed
from helpers.plots.labels import name_rows
from helpers.plots.picture import canvas
from helpers.plots.style import FAINT, GREY, PAPER, RANK_COLORS, rank_color

EDGE, ARROW = "#444444", "#666666"

CELL = 0.56  # inches; the lengths of `holdings` are in cells
APART = 1.2  # between two states
LETTER = 0.17  # of a title
SIDE, GAP = 1.0, 0.35  # inches: a matrix's longer side, and between two matrices
ROW = 0.34  # inches; a rank's lane in `replicas` is as high as its rows, or a box
COLUMNS = {"batch": 0.0, "shard": 1.5, "replica": 3.0, "gradient": 5.0, "mean": 6.8, "update": 8.4}


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
    rows: Mapping[float, str] | None = None,
    texts: Iterable[Text] = (),
    arrows: Iterable[tuple[tuple[float, float], tuple[float, float]]] = (),
    corner: float = 0.0,
    fontsize: float = 9,
    clear: bool = False,
    words: str = "",
    **frame,
):
    """Draw boxes, words and arrows on axes without ticks.

    Args:
        xlim: the left and the right end of the picture.
        ylim: its top and its bottom.
        size: inches of a new picture, which the boxes fill from edge to edge.
        rows: place -> a name to the left of the boxes.
        arrows: (start, end), each as (x, y).
        corner: radius of the boxes' corners.
        fontsize: of the labels.
        clear: put each label on a patch of paper, where several colours meet below it.
        words, frame: what is drawn, for readers who do not see it; title, on, width, height: as
            `helpers.plots.picture.canvas` has them.
    """
    from matplotlib.patches import FancyBboxPatch, Rectangle

    if size:
        frame |= {"width": size[0], "height": size[1]}
    with canvas(words, xlim=xlim, ylim=ylim[::-1], **frame) as axes:
        if size:
            axes.figure.set_layout_engine("none")
            axes.set_position([0, 0, 1, 1])
        paper = {"boxstyle": "round,pad=0.12", "fc": PAPER, "ec": "none", "alpha": 0.85}
        style = {"ha": "center", "va": "center", "fontsize": fontsize}
        for box in found:
            look = {"fc": box.color, "ec": box.edge, "lw": box.line, "ls": box.dash}
            look |= {"hatch": box.hatch, "alpha": box.alpha if box.alpha < 1 else None}
            place = (box.x, box.y), box.width, box.height
            if corner:
                round_ = f"round,pad=0,rounding_size={corner}"
                axes.add_patch(FancyBboxPatch(*place, boxstyle=round_, **look))
            else:
                axes.add_patch(Rectangle(*place, **look))
            if box.label:
                middle = box.x + box.width / 2, box.y + box.height / 2
                axes.text(*middle, box.label, bbox=paper if clear else None, **style)
        for text in texts:
            axes.text(*text[:2], text.words, ha=text.side, va="center", fontsize=text.size)
        for start, end in arrows:
            arrow = {"arrowstyle": "->", "color": ARROW, "lw": 1.3}
            axes.annotate("", end, start, arrowprops=arrow)
        name_rows(axes, rows or {})
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
    if frame.get("on") is None:
        axes.figure.alt = axes.words
    return axes.figure


def holdings(states: Mapping[str, Sequence[Sequence | None]], *, owners=None):
    """Draw a row of boxes for each rank, one column of rows for each state.

    Args:
        states: title -> for each rank its values, 1-D (a list or a tensor); None or an empty list
            if the rank has no value.
        owners: title -> for each rank the source rank of each value, which gives the colour; None
            for a value made from several ranks. Without owners, the values of the first state have
            their rank's colour, and the values of later states are grey.
    """
    rows = {title: [as_list(values) for values in held] for title, held in states.items()}
    ranks = max(len(held) for held in rows.values())
    found, arrows, start = [], [], 0.0
    texts = [Text(-0.25, rank, f"rank {rank}", "right", 10.5) for rank in range(ranks)]
    for number, (title, held) in enumerate(rows.items()):
        width = max(1, *(len(values) for values in held))
        span = max(width, LETTER * len(title))
        left = start + (span - width) / 2  # the boxes stand below their title
        texts.append(Text(left + width / 2, -0.85, title, size=11))
        if number:
            middle = (ranks - 1) / 2
            arrows.append(((start - 1.0, middle), (start - 0.2, middle)))
        for rank, values in enumerate(held):
            for column, value in enumerate(values):
                owner = rank if number == 0 else None
                if owners and title in owners:
                    owner = owners[title][rank][column]
                color, alpha = ("#dddddd", 0.9) if owner is None else (rank_color(owner), 0.35)
                place = (left + column + 0.07, rank - 0.38, 0.86, 0.76)
                found.append(Box(*place, color, number_text(value), line=0.8, alpha=alpha))
        start += span + APART
    total = start - APART
    return boxes(
        found,
        size=(CELL * (total + 1.75), CELL * (ranks + 0.9)),
        xlim=(-1.6, total + 0.15),
        ylim=(-1.3, ranks - 0.4),
        texts=texts,
        arrows=arrows,
        corner=0.1,
        fontsize=10.5,
        words=" ".join(
            f"{title[:1].upper()}{title[1:]}. {ranks_text(held)}." for title, held in rows.items()
        ),
    )


def ranks_text(held, nothing: str = "nothing") -> str:
    """The values of each rank, in words."""
    return "; ".join(
        f"rank {rank}: {', '.join(map(number_text, values)) or nothing}"
        for rank, values in enumerate(held)
    )


def as_list(values) -> list:
    if values is None:
        return []
    return values.tolist() if hasattr(values, "tolist") else list(values)


def number_text(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def shares(
    shape: Sequence[int],
    held: Sequence[Sequence[Sequence[tuple[int, int]]]],
    *,
    columns: int = 8,
    title: str = "",
):
    """Draw a tensor's outline for each rank, and fill the boxes that the rank holds.

    Args:
        shape: (rows, columns), or (n,), which is drawn as one row, or () of a number.
        held: for each rank its boxes: a (start, stop) for each dim.
        columns: outlines side by side.

    Raises:
        ValueError: the tensor has more than two dims.
    """
    if len(shape) > 2:
        raise ValueError(f"shares draws tensors of at most two dims, not {tuple(shape)}")
    tall, wide = (1, 1, *shape)[-2:]
    scale = SIDE / max(tall, wide)
    width, height = max(wide * scale, 0.12), max(tall * scale, 0.12)
    across_one, down_one = width / max(wide, 1), height / max(tall, 1)  # an empty tensor: any
    across = min(columns, len(held))
    step = (SIDE + GAP, height + GAP + 0.1)  # as wide for each shape: pictures compare
    above = 0.3 * bool(title)
    size = (across * step[0] + GAP, -(-len(held) // across) * step[1] + 0.3 + above)
    texts = [Text(size[0] / 2, 0.2, title, size=10)] if title else []
    found = []
    for rank, own in enumerate(held):
        left, top = GAP + rank % across * step[0], above + 0.35 + rank // across * step[1]
        texts.append(Text(left, top - 0.11, f"rank {rank}", "left", 10))
        found.append(Box(left, top, width, height, FAINT, edge=GREY))
        for box in own:
            (first, last), (start, stop) = ((0, 1), (0, 1), *box)[-2:]
            corner = left + start * across_one, top + first * down_one
            part = (stop - start) * across_one, (last - first) * down_one
            found.append(Box(*corner, *part, rank_color(rank), edge=GREY))
    said = "; ".join(
        f"rank {rank}: {' and '.join(map(str, own)) or 'nothing'}" for rank, own in enumerate(held)
    )
    words = headed(title, f"The part of the tensor that each rank holds. {said}.")
    return boxes(found, size=size, xlim=(0, size[0]), ylim=(0, size[1]), texts=texts, words=words)


def replicas(shards, *, noun: str = "rows"):
    """Draw a step of data parallel: shards, equal replicas, and one mean of their gradients.

    Args:
        shards: for each rank the numbers of its rows, in rank order, drawn in the rank's colour.
        noun: the name of a batch's parts, in the plural.

    Raises:
        ValueError: there are no ranks.
    """
    shards = [list(shard) for shard in shards]
    if not shards:
        raise ValueError("no ranks to draw")
    lane = max(2, *map(len, shards)) + 0.6  # in rows
    height, rows = lane * len(shards), sum(map(len, shards))
    titles = {
        "batch": f"global batch\nof {rows} {noun}",
        "shard": "shard",
        "replica": "the same model\non every rank",
        "gradient": "gradient of\nits own shard",
        "mean": "all-reduce",
        "update": "the same\nupdate",
    }
    found, arrows = [], []

    def box(column, top, tall, label, color, width=0.9, alpha=0.35):
        left = COLUMNS[column] - width / 2
        found.append(Box(left, top, width, tall, color, label, line=1, alpha=alpha))

    place = (height - rows) / 2  # the batch stands in the middle
    for rank, shard in enumerate(shards):
        color, middle = rank_color(rank), lane * (rank + 0.5)
        top = middle - len(shard) / 2
        arrows.append(((0.5, place + len(shard) / 2), (0.95, middle)))
        for row in shard:
            box("batch", place + 0.05, 0.9, str(row), color)
            box("shard", top + 0.05, 0.9, str(row), color)
            place, top = place + 1, top + 1
        box("replica", middle - 0.8, 1.6, f"rank {rank}", "#bbbbbb", 1.2)
        box("gradient", middle - 0.6, 1.2, f"$g_{{{rank}}}$", color)
        box("update", middle - 0.6, 1.2, r"$\bar g$", "#bbbbbb")
        for start, end in ((2.05, 2.35), (3.7, 4.45), (5.55, 6.0), (7.5, 7.85)):
            arrows.append(((start, middle), (end, middle)))
    box("mean", 0.1, height - 0.2, r"$\bar g = \frac{1}{N}\sum_r g_r$", RANK_COLORS[4], 1.4, 0.2)
    said = ranks_text(shards, "none")
    return boxes(
        found,
        size=(7.6, ROW * (height + 2.0)),
        xlim=(-0.7, 9.1),
        ylim=(-1.7, height + 0.3),
        texts=[Text(COLUMNS[column], -0.9, title) for column, title in titles.items()],
        arrows=arrows,
        corner=0.08,
        words=(
            f"A step of data parallel. A global batch of {rows} {noun} is cut into shards. "
            f"{said[:1].upper()}{said[1:]}. Every rank has the same model and computes the "
            "gradient of its own shard. An all-reduce gives every rank the mean. Every rank makes "
            "the same update."
        ),
    )
