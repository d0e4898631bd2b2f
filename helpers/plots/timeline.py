"""Boxes on lanes over a common axis of time: a profile's ops, a pipeline's schedule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from helpers.plots.alt import two_digits
from helpers.plots.labels import color_key, name_rows, note
from helpers.plots.picture import canvas, panels
from helpers.plots.style import (
    FAINT,
    INK,
    PAPER,
    SERIES_COLORS,
    SMALL,
    WORK_COLORS,
    course_style,
    meaning,
    readable_on,
)

# The colour of each kind of work. Other kinds get a colour in order of appearance.
KIND_COLORS = {**WORK_COLORS, "": "#999999"}
LETTER = 0.075  # inches of a label's letter
LANE, TIGHT = 0.34, 0.32  # inches, of a timeline and of a pipeline
SPACE = 0.85  # inches: a pipeline's title and its axis
KINDS = {  # of a pipeline's work
    "F": ("forward", WORK_COLORS["forward"]),
    "B": ("backward", WORK_COLORS["backward"]),
    "I": ("gradient of the input (I)", "#ee9955"),
    "W": ("gradient of the weights (W)", "#999933"),
}
PALER = 0.35  # of the way to white, for each further stage of a rank

Piece = tuple[int, float, float, str, int, int]  # rank, start, stop, kind, stage, micro-batch


@dataclass(frozen=True, kw_only=True)
class Box:
    """One piece of work.

    Attributes:
        lane: its row: "rank 0", "stage 2", "rank 0 communication".
        start, duration: in the unit of the axis, which is any.
        label: written in the box if there is room, the number of a micro-batch for example.
        kind: "forward", "communication", "idle", …: it gives the colour and an entry in the key.

    Raises:
        ValueError: the duration is negative.
    """

    lane: str
    start: float
    duration: float
    label: str = ""
    kind: str = ""

    def __post_init__(self):
        if self.duration < 0:
            raise ValueError(f"a box of negative duration: {self}")

    @property
    def end(self) -> float:
        return self.start + self.duration


def timeline(
    boxes: Iterable[Box],
    *,
    lanes: Sequence[str] | None = None,
    colors: Mapping[str, str] | None = None,
    group: int = 0,
    xlabel: str = "time",
    title: str = "",
    width: float = 8.0,
):
    """Draw each box on its lane. Boxes of one lane that overlap in time share its height.

    Args:
        lanes: all lanes from the top, lanes without a box too; by default in order of appearance.
        colors: kind -> colour, before the colours of KIND_COLORS.
        group: the number of lanes that belong together, with a line after each group; 0: no line.
        xlabel: the axis of time, with its unit.
        width: of the picture in inches, at 80 dots each.

    Raises:
        ValueError: a box is on a lane that is not in `lanes`.
    """
    boxes = list(boxes)
    lanes = list(dict.fromkeys(box.lane for box in boxes) if lanes is None else lanes)
    if missing := {box.lane for box in boxes} - set(lanes):
        raise ValueError(f"no such lanes: {sorted(missing)}; there are {lanes}")
    colors = colors_of([box.kind for box in boxes], colors or {})
    key = {kind: color for kind, color in colors.items() if kind}
    height = LANE * max(len(lanes), 1) + 0.6 + 0.3 * bool(title) + 0.3 * bool(key)
    said = words(boxes, lanes, key, xlabel)
    with canvas(said, width=width, height=height, title=title, xlabel=xlabel) as axes:
        left = min((box.start for box in boxes), default=0.0)
        right = max(max((box.end for box in boxes), default=1.0), left + 1e-12)
        axes.set_xlim(left, right + 0.01 * (right - left))  # the last box shows its end
        draw_lanes(axes, boxes, lanes, colors, width - 0.3)
        for number in range(group, len(lanes), group) if group else ():
            axes.axhline(number - 0.5, color="#444444", lw=0.8)
        if key:
            color_key(axes.figure, key, loc="outside upper right", ncols=len(key))
    axes.figure.alt = axes.words
    return axes.figure


def draw_lanes(axes, boxes: Sequence[Box], lanes: Sequence[str], colors, width: float):
    """The boxes on their lanes, and the lanes' names; `width` is of lanes and names, in inches."""
    left, right = axes.get_xlim()
    letters = (right - left) / (width - LETTER * max(map(len, lanes), default=0)) * LETTER
    for number, lane in enumerate(lanes):
        own = [box for box in boxes if box.lane == lane]
        rows, count = stack(own)
        for kind in dict.fromkeys(box.kind for box in own):
            draw_kind(axes, number, own, rows, count, kind, colors[kind], letters)
    axes.set_ylim(max(len(lanes), 1) - 0.5, -0.5)
    name_rows(axes, lanes)
    axes.spines["left"].set_visible(False)


def words(boxes, lanes, kinds, xlabel) -> str:
    """What is drawn, in words: the lanes, and when each is busy."""
    said = []
    for lane in lanes:
        own = [box for box in boxes if box.lane == lane]
        if own:
            first, last = min(box.start for box in own), max(box.end for box in own)
            said.append(f"{lane}, {len(own)} boxes from {two_digits(first)} to {two_digits(last)}")
        else:
            said.append(f"{lane}, empty")
    sorts = f" of {', '.join(kinds)}" if kinds else ""
    return f"A timeline{sorts} over {xlabel}. From the top: {'; '.join(said)}."


def colors_of(kinds: Iterable[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Kind -> colour, in the order of the kinds' first appearance."""
    kinds = list(dict.fromkeys(kinds))
    known = {kind: meaning(kind) for kind in kinds if meaning(kind)} | {**KIND_COLORS, **chosen}
    free = iter(SERIES_COLORS * (1 + len(kinds) // len(SERIES_COLORS)))
    return {kind: known[kind] if kind in known else next(free) for kind in kinds}


def stack(boxes: Sequence[Box]) -> tuple[list[int], int]:
    """For each box a row on which it overlaps no other, and the number of rows needed.

    Boxes that touch do not overlap. Neither do boxes whose ends differ by rounding alone.
    """
    slack = 1e-9 * max((abs(box.end) for box in boxes), default=0.0)
    rows, free = [0] * len(boxes), []  # when each row becomes free
    # Of boxes that start together the longest comes first: a range is drawn above its contents.
    for number in sorted(range(len(boxes)), key=lambda n: (boxes[n].start, -boxes[n].duration)):
        box = boxes[number]
        row = next((r for r, end in enumerate(free) if end <= box.start + slack), len(free))
        free[row : row + 1] = [box.end]
        rows[number] = row
    return rows, max(len(free), 1)


def draw_kind(axes, lane, boxes, rows, count, kind, color, letters):
    """The boxes of one lane and kind: one collection for each row, since there may be thousands."""
    step = 0.8 / count
    for row in range(count):
        own = [b for b, r in zip(boxes, rows, strict=True) if r == row and b.kind == kind]
        if not own:
            continue
        bottom = lane - 0.4 + row * step
        labelled = any(box.label for box in own)
        axes.broken_barh(
            [(box.start, box.duration) for box in own],
            (bottom, step * 0.94),
            facecolor=color,
            edgecolor=PAPER if labelled else color,
            linewidth=0.8 if labelled else 0.2,
        )
        for box in own:
            if box.label and count < 3 and len(box.label) * letters <= box.duration:
                middle = box.start + box.duration / 2, bottom + step * 0.47
                style = {"fontsize": SMALL, "color": readable_on(color), "ha": "center"}
                axes.text(*middle, box.label, va="center_baseline", **style)


def pipelines(
    rows: Mapping[str, Sequence[Piece]],
    *,
    xlabel: str | Sequence[str] = "time",
    shown: int | None = None,
    counts: Sequence[int] = (),
    width: float = 8.0,
):
    """Draw each row's computations on a lane for each rank, with the micro-batch's number.

    The first stage of a rank has the strongest colour, its further stages are paler.

    Args:
        rows: title -> pieces (rank, start, stop, kind, stage, micro-batch); the kind is "F", "B",
            "I" or "W".
        xlabel: the axis of time with its unit. One for all rows: the rows have the same scale. A
            list with one for each row: each row has its own scale.
        shown: draw the first pieces of each row only, so many, and frame the last of them. The
            axes stay those of all pieces.
        counts: for each rank, a number to the right of its lane: activations held, for example.
        width: of the picture in inches.

    Raises:
        ValueError: there is no row, or a row has no piece.
        KeyError: there is no such kind.
    """
    if not rows or not all(rows.values()):
        raise ValueError("each row of the picture needs at least one piece")
    together = isinstance(xlabel, str)
    labels = [xlabel] * len(rows) if together else list(xlabel)
    lanes = [1 + max(piece[0] for piece in pieces) for pieces in rows.values()]
    heights = [TIGHT * lane + SPACE for lane in lanes]
    tall = sum(heights) + 0.35
    figure = panels(1, len(rows), width=width, height=tall, height_ratios=heights)
    for axes, label, (title, pieces) in zip(figure.axes, labels, rows.items(), strict=True):
        left, right = ends([p for each in rows.values() for p in each] if together else pieces)
        axes.set_xlim(left, right)
        draw_pipeline(axes, pieces, width, shown, counts)
        axes.set_xlabel(label)
        with course_style():
            axes.set_title(title, loc="left")
    found = {piece[3] for pieces in rows.values() for piece in pieces}
    key = dict(look for kind, look in KINDS.items() if kind in found)
    if any(several_stages(pieces) for pieces in rows.values()):
        key["paler: later stage"] = paler(next(iter(key.values())), 1)
    color_key(figure, key, loc="outside lower right", ncols=min(len(key), 4))
    figure.alt = pipelines_in_words({title: p[:shown] for title, p in rows.items()}, labels, counts)
    return figure


def several_stages(pieces: Sequence[Piece]) -> bool:
    """Whether a rank has more than one stage."""
    return len({(piece[0], piece[4]) for piece in pieces}) > len({piece[0] for piece in pieces})


def draw_pipeline(axes, pieces: Sequence[Piece], width: float, shown, counts):
    """The lanes of one timeline, with the idle time in grey behind them."""
    from matplotlib.patches import Rectangle

    if unknown := {piece[3] for piece in pieces} - set(KINDS):
        raise KeyError(f"no kinds {sorted(unknown)}; there are {', '.join(KINDS)}")
    left, right = ends(pieces)
    lanes = [f"rank {rank}" for rank in range(1 + max(piece[0] for piece in pieces))]
    for number in range(len(lanes)):
        axes.broken_barh([(left, right - left)], (number - 0.4, 0.752), facecolor=FAINT)
    stages = {(rank, stage) for rank, *_, stage, _ in pieces}
    found, colors = [], {}
    for rank, start, stop, kind, stage, micro in pieces[:shown]:
        chunk = sum(r == rank and s < stage for r, s in stages)  # of this rank's stages
        colors[f"{kind}{chunk}"] = paler(KINDS[kind][1], chunk)
        box = {"start": start, "duration": stop - start, "label": str(micro)}
        found.append(Box(lane=lanes[rank], kind=f"{kind}{chunk}", **box))
    found.sort(key=lambda box: (list(KINDS).index(box.kind[0]), int(box.kind[1:])))
    draw_lanes(axes, found, lanes, colors, width - 0.5)
    if shown:
        rank, start, stop, *_ = pieces[:shown][-1]
        frame = Rectangle((start, rank - 0.4), stop - start, 0.752, fill=False, ec=INK, lw=2)
        axes.add_patch(frame)
    for rank, count in enumerate(counts):
        note(axes, f" {count}", (1.0, rank), (0, 0), of=("axes fraction", "data"), color=INK)
    axes.grid(visible=False)


def ends(pieces: Sequence[Piece]) -> tuple[float, float]:
    """The first start and the last stop."""
    left, right = min(piece[1] for piece in pieces), max(piece[2] for piece in pieces)
    return left, max(right, left + 1e-12)


def paler(color: str, chunk: int) -> str:
    """The colour of a rank's stage number `chunk`: each is a step nearer to white."""
    from matplotlib.colors import to_hex, to_rgb

    keep = (1 - PALER) ** chunk
    return to_hex(
        [keep * c + (1 - keep) * p for c, p in zip(to_rgb(color), to_rgb(PAPER), strict=True)]
    )


def pipelines_in_words(rows, labels, counts) -> str:
    """What is drawn, in words: for each row, when each rank computes and for how long."""
    parts = []
    for (title, pieces), label in zip(rows.items(), labels, strict=True):
        said = []
        for rank in sorted({piece[0] for piece in pieces}):
            own = [piece for piece in pieces if piece[0] == rank]
            busy = sum(stop - start for _, start, stop, *_ in own)
            first, last = min(piece[1] for piece in own), max(piece[2] for piece in own)
            said.append(
                f"rank {rank} computes {two_digits(busy)} between {two_digits(first)} and "
                f"{two_digits(last)}"
            )
        parts.append(f"{title}. A pipeline's timeline over {label}: {'; '.join(said)}.")
    if counts:
        parts.append(f"Activations held, by rank: {', '.join(map(str, counts))}.")
    return " ".join(parts)
