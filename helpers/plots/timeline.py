"""Boxes on lanes over a common axis of time: a profile's ops, a pipeline's schedule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from helpers.plots.alt import headed, two_digits
from helpers.plots.labels import color_key, name_rows
from helpers.plots.panel import canvas
from helpers.plots.style import (
    PAPER,
    SERIES_COLORS,
    WORK_COLORS,
    course_style,
    meaning,
    readable_on,
)

# The colour of each kind of work. Other kinds get a colour in order of appearance.
KIND_COLORS = {**WORK_COLORS, "": "#999999"}
LETTER = 0.075  # inches of a label's letter
LANE = 0.34  # inches


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
    kinds = [kind for kind in colors if kind]
    height = LANE * max(len(lanes), 1) + 0.6 + 0.3 * bool(title) + 0.3 * bool(kinds)
    axes, figure = canvas(width=width, height=height)
    figure.alt = words(boxes, lanes, kinds, xlabel, title)
    left = min((box.start for box in boxes), default=0.0)
    right = max((box.end for box in boxes), default=1.0)
    right = max(right, left + 1e-12)
    letters = (right - left) / (width - LETTER * max(map(len, lanes), default=0) - 0.3) * LETTER
    for number, lane in enumerate(lanes):
        own = [box for box in boxes if box.lane == lane]
        rows, count = stack(own)
        for kind in dict.fromkeys(box.kind for box in own):
            draw_kind(axes, number, own, rows, count, kind, colors[kind], letters)
    for number in range(group, len(lanes), group) if group else ():
        axes.axhline(number - 0.5, color="#444444", lw=0.8)
    axes.set(xlim=(left, right), ylim=(max(len(lanes), 1) - 0.5, -0.5), xlabel=xlabel)
    with course_style():
        axes.set_title(title)
    name_rows(axes, lanes)
    axes.spines["left"].set_visible(False)
    if kinds:
        key = {kind: colors[kind] for kind in kinds}
        color_key(figure, key, loc="outside upper right", ncols=len(kinds))
    return figure


def words(boxes, lanes, kinds, xlabel, title) -> str:
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
    return headed(title, f"A timeline{sorts} over {xlabel}. From the top: {'; '.join(said)}.")


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
            if box.label and len(box.label) * letters <= box.duration:
                middle = box.start + box.duration / 2, bottom + step * 0.47
                style = {"fontsize": 9 if count == 1 else 7, "color": readable_on(color)}
                axes.text(*middle, box.label, ha="center", va="center", **style)
