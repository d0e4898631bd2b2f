"""A server's run: each request or stream of tokens as a row over time, and the cache's blocks."""

import itertools
from collections.abc import Mapping, Sequence

from helpers.plots.alt import headed, two_digits
from helpers.plots.curve import guides
from helpers.plots.labels import color_key, name_rows, note
from helpers.plots.panel import panels
from helpers.plots.style import GREY, WIDTH, course_style

KINDS = {  # in the order of the key
    "waiting": "#dddddd",
    "prefill": "#332288",
    "decode": "#44aa99",
    "preempted": "#cc6677",
}
TALLEST, ROW, FILL = 5.0, 0.14, 1.3  # inches: all rows at most, one row at most, the plot of blocks
TOKENS = 0.17  # inches: a stream's row


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

    Raises:
        ValueError: a span is of another kind, or ends before it starts.
    """
    check_spans(rows)
    spans = [span for own in rows.values() for span in own]
    last = max((end for _, _, end in spans), default=1.0) if until is None else until
    tall = max(min(TALLEST, ROW * len(rows)), 0.5)
    heights = [tall, FILL] if blocks else [tall]
    size = {"width": width, "height": sum(heights) + 0.9 + 0.3 * bool(title)}
    figure = panels(1, len(heights), **size, sharex=True, height_ratios=heights)
    with course_style():
        draw_rows(figure.axes[0], list(rows.values()))
        if blocks:
            draw_blocks(figure.axes[1], blocks, capacity)
        figure.axes[-1].set(xlabel=xlabel, xlim=(0, last or 1.0))
        figure.axes[0].set_title(title)
        present = [kind for kind in KINDS if any(kind == span[0] for span in spans)]
        if present:
            key = {kind: KINDS[kind] for kind in present}
            color_key(figure, key, loc="outside upper right", ncols=len(key))
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
            [(a, row - thin), (a, row + thin), (b, row + thin), (b, row - thin)]
            for row, own in enumerate(rows)
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
        guides(axes, {}, {f"all {capacity} blocks": capacity})
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
    return headed(title, said)


def token_rows(
    runs: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    arrivals: Mapping[str, float] | None = None,
    xlabel: str = "seconds",
    width: float = WIDTH,
):
    """Draw runs below each other, over the same axis of time. Each stream is a row of marks.

    The longest gap between two neighbouring tokens of a run is written into its title.

    Args:
        runs: a run's name -> a stream's name -> the times of its tokens.
        arrivals: label -> time: a dashed guide in every run, when a long prompt arrives for
            example.

    Raises:
        ValueError: there is no run, or a run has no stream.
    """
    if not runs or not all(runs.values()):
        raise ValueError("there is no run to draw, or a run has no stream")
    rows = [len(streams) for streams in runs.values()]
    tall = 0.7 + sum(0.55 + TOKENS * max(n, 2) for n in rows)
    figure = panels(1, len(runs), width=width, height=tall, sharex=True, height_ratios=rows)
    every = figure.axes
    with course_style():
        for axes, (name, streams) in zip(every, runs.items(), strict=True):
            marks = {"linelengths": 0.7, "linewidths": 1.0, "colors": KINDS["prefill"]}
            axes.eventplot(list(streams.values()), lineoffsets=range(len(streams)), **marks)
            name_rows(axes, list(streams))
            axes.set(ylim=(len(streams) - 0.5, -0.5))
            axes.set_title(f"{name}: the longest gap is {two_digits(longest(streams))} {xlabel}")
            axes.grid(visible=False)
            for label, time in (arrivals or {}).items():
                axes.axvline(time, color=GREY, lw=1, ls="--", zorder=1)
                if axes is every[0]:
                    foot = {"of": ("data", "axes fraction"), "va": "baseline"}
                    note(axes, label, (time, 0), (3, 2), **foot)
        every[-1].set_xlabel(xlabel)
        every[-1].set_xlim(left=0)
    figure.alt = token_words(runs, arrivals or {}, xlabel)
    return figure


def longest(streams: Mapping[str, Sequence[float]]) -> float:
    """The longest gap between two neighbouring tokens of one stream; 0 if there is none."""
    gaps = (b - a for times in streams.values() for a, b in itertools.pairwise(times))
    return max(gaps, default=0.0)


def token_words(runs, arrivals, xlabel: str) -> str:
    """What is drawn, in words."""
    said = [
        f"{name}: {len(streams)} streams, {sum(map(len, streams.values()))} tokens, "
        f"longest gap {two_digits(longest(streams))} {xlabel}"
        for name, streams in runs.items()
    ]
    guides = [f"{label} at {two_digits(time)} {xlabel}" for label, time in arrivals.items()]
    return f"When each token of each stream came. {'; '.join([*said, *guides])}."
