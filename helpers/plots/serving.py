"""A server's run: each request as a row over time, and the blocks of its cache below."""

from collections.abc import Mapping, Sequence

from helpers.plots.alt import two_digits
from helpers.plots.style import GREY, INK, SMALL, course_style

KINDS = {  # in the order of the key
    "waiting": "#dddddd",
    "prefill": "#332288",
    "decode": "#44aa99",
    "preempted": "#cc6677",
}
TALLEST, ROW, FILL = 5.0, 0.14, 1.3  # inches: all rows at most, one row at most, the plot of blocks


def serving(
    rows: Mapping[str, Sequence[tuple[str, float, float]]],
    blocks: Mapping[str, Sequence[tuple[float, float, int]]] | None = None,
    *,
    capacity: int = 0,
    xlabel: str = "seconds",
    title: str = "",
    until: float | None = None,
    width: float = 8.0,
):
    """Draw the spans of each request on its row, from the top, and the blocks in use below.

    Args:
        rows: a request's name -> its spans: (kind, start, end). The kinds are "waiting",
            "prefill", "decode" and "preempted".
        blocks: "reserved" and "used" -> (start, end, blocks) of each step, in order of time.
        capacity: all blocks, a dashed line.
        until: the end of the axis of time, so that two pictures can be compared.

    Returns:
        The Picture.

    Raises:
        ValueError: a span is of another kind, or ends before it starts.
    """
    from matplotlib.patches import Patch

    from helpers.plots.picture import Picture

    check_spans(rows)
    spans = [span for own in rows.values() for span in own]
    last = max((end for _, _, end in spans), default=1.0) if until is None else until
    tall = max(min(TALLEST, ROW * len(rows)), 0.5)
    heights = [tall, FILL] if blocks else [tall]
    figure = Picture(figsize=(width, sum(heights) + 0.9 + 0.3 * bool(title)))
    with course_style():
        parts = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
        draw_rows(parts[0, 0], list(rows.values()))
        if blocks:
            draw_blocks(parts[1, 0], blocks, capacity)
        parts[-1, 0].set(xlabel=xlabel, xlim=(0, last or 1.0))
        parts[0, 0].set_title(title)
        present = [kind for kind in KINDS if any(kind == span[0] for span in spans)]
        if present:
            handles = [Patch(color=KINDS[kind], label=kind) for kind in present]
            figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    figure.alt = words(rows, blocks or {}, capacity, xlabel, title)
    return figure


def check_spans(rows):
    for name, own in rows.items():
        for kind, start, end in own:
            if kind not in KINDS:
                raise ValueError(f"{name} has a span of kind {kind!r}; use one of {list(KINDS)}")
            if end < start:
                raise ValueError(f"{name} has a span from {start} to {end}, which is before it")


def draw_rows(axes, rows):
    """One collection of boxes for each kind: there may be thousands of boxes."""
    from matplotlib.collections import PolyCollection

    for kind, color in KINDS.items():
        thin = 0.25 if kind == "waiting" else 0.45
        boxes = [
            [
                (x, number + side * thin)
                for x, side in zip((a, a, b, b), (-1, 1, 1, -1), strict=True)
            ]
            for number, own in enumerate(rows)
            for name, a, b in own
            if name == kind
        ]
        axes.add_collection(PolyCollection(boxes, facecolor=color, linewidth=0), autolim=False)
    axes.set(ylim=(max(len(rows), 1) - 0.5, -0.5), ylabel=f"{len(rows)} requests")
    axes.set_yticks([])
    axes.grid(visible=False)


def draw_blocks(axes, blocks, capacity):
    """The blocks of each step, from its start to its end. Between two steps nothing is held."""
    looks = {"reserved": {"color": GREY, "alpha": 0.35}, "used": {"color": KINDS["decode"]}}
    for name, look in looks.items():
        if name in blocks:
            edges, values = stairs(blocks[name])
            axes.stairs(values, edges, fill=True, label=name, linewidth=0, **look)
    if capacity:
        axes.axhline(capacity, color=GREY, lw=1, ls="--")
        axes.annotate(
            f"all {capacity} blocks",
            (1, capacity),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 1),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=SMALL,
            color=INK,
        )
    highest = max([capacity, *(value for steps in blocks.values() for _, _, value in steps)])
    axes.set(ylabel="blocks", ylim=(0, 1.35 * highest or 1))  # room for the key
    axes.legend(loc="upper left", ncols=2)


def stairs(steps: Sequence[tuple[float, float, int]]) -> tuple[list[float], list[int]]:
    """The edges of the steps, and the values between them; 0 where no step is."""
    edges, values = [0.0], []
    for start, end, value in steps:
        if start > edges[-1]:
            edges.append(start)
            values.append(0)
        edges.append(end)
        values.append(value)
    return edges, values


def words(rows, blocks, capacity, xlabel, title) -> str:
    """What is drawn, in words."""
    spans = [span for own in rows.values() for span in own]
    last = max((end for _, _, end in spans), default=0.0)
    kinds = [kind for kind in KINDS if any(kind == span[0] for span in spans)]
    said = f"{len(rows)} requests over {two_digits(last)} {xlabel}, one row each"
    said += f": {', '.join(kinds)}." if kinds else "."
    for name, steps in blocks.items():
        most = max((value for _, _, value in steps), default=0)
        said += f" Blocks {name}: at most {most}{f' of {capacity}' if capacity else ''}."
    return f"{title}. {said}" if title else said
