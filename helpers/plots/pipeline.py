"""A pipeline's timelines, one below the other: ideal and measured, in the same colours."""

from collections.abc import Mapping, Sequence

from helpers.plots.alt import two_digits
from helpers.plots.labels import color_key, name_rows, note
from helpers.plots.panel import panels
from helpers.plots.style import FAINT, GREY, INK, PAPER, WORK_COLORS, course_style
from helpers.plots.timeline import LETTER, Box, draw_kind

Piece = tuple[int, float, float, str, int, int]  # rank, start, stop, kind, stage, micro-batch

LANE = 0.32  # inches
SPACE = 0.85  # inches: a plot's title and its axis
KINDS = {
    "F": ("forward", WORK_COLORS["forward"]),
    "B": ("backward", WORK_COLORS["backward"]),
    "I": ("gradient of the input (I)", "#ee9955"),
    "W": ("gradient of the weights (W)", "#999933"),
}
PALER = 0.35  # of the way to white, for each further stage of a rank


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
    heights = [LANE * lane + SPACE for lane in lanes]
    tall = sum(heights) + 0.35
    figure = panels(1, len(rows), width=width, height=tall, height_ratios=heights)
    for axes, label, (title, pieces) in zip(figure.axes, labels, rows.items(), strict=True):
        left, right = ends([p for each in rows.values() for p in each] if together else pieces)
        axes.set_xlim(left, right)
        draw_row(axes, pieces, width, shown, counts)
        axes.set_xlabel(label)
        with course_style():
            axes.set_title(title, loc="left")
    found = {piece[3] for pieces in rows.values() for piece in pieces}
    key = dict(look for kind, look in KINDS.items() if kind in found)
    color_key(figure, key, loc="outside lower right", ncols=len(key))
    figure.alt = words({title: p[:shown] for title, p in rows.items()}, labels, counts)
    return figure


def draw_row(axes, pieces: Sequence[Piece], width: float, shown, counts):
    """The lanes of one timeline, with the idle time in grey behind them."""
    from matplotlib.patches import Rectangle

    left, right = ends(pieces)
    names = [f"rank {rank}" for rank in range(1 + max(piece[0] for piece in pieces))]
    shown_time = axes.get_xlim()[1] - axes.get_xlim()[0]
    letters = shown_time / (width - LETTER * len(names[-1]) - 0.5) * LETTER
    for rank in range(len(names)):
        axes.broken_barh([(left, right - left)], (rank - 0.4, 0.752), facecolor=FAINT)
        stages = sorted({piece[4] for piece in pieces if piece[0] == rank})
        own = [piece for piece in pieces[:shown] if piece[0] == rank]
        for kind in KINDS:
            for chunk, stage in enumerate(stages):
                boxes = [
                    Box(lane=names[rank], start=start, duration=stop - start, label=str(micro))
                    for _, start, stop, what, at, micro in own
                    if (what, at) == (kind, stage)
                ]
                color = paler(KINDS[kind][1], chunk)
                draw_kind(axes, rank, boxes, [0] * len(boxes), 1, "", color, letters)
    if shown:
        rank, start, stop, *_ = pieces[shown - 1]
        frame = Rectangle((start, rank - 0.4), stop - start, 0.752, fill=False, ec=INK, lw=2)
        axes.add_patch(frame)
    for rank, count in enumerate(counts):
        note(axes, f" {count}", (1.0, rank), (0, 0), of=("axes fraction", "data"), color=GREY)
    if unknown := {piece[3] for piece in pieces} - set(KINDS):
        raise KeyError(f"no kinds {sorted(unknown)}; there are {', '.join(KINDS)}")
    axes.set_ylim(len(names) - 0.5, -0.5)
    name_rows(axes, names)
    axes.spines["left"].set_visible(False)
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


def words(rows, labels, counts) -> str:
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
