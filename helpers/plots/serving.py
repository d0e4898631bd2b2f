"""A server's run: requests or tokens as rows over time; the cache's memory, block by block."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

from helpers.plots.alt import headed, two_digits
from helpers.plots.curve import guides
from helpers.plots.holdings import Box, Text, boxes
from helpers.plots.labels import color_key, name_rows, note
from helpers.plots.picture import panels
from helpers.plots.style import FAINT, GREY, INK, SERIES_COLORS, SMALL, WIDTH, course_style

KINDS = {  # in the order of the key
    "waiting": "#dddddd",
    "prefill": "#332288",
    "decode": "#44aa99",
    "preempted": "#cc6677",
}
TALLEST, ROW, FILL = 2.4, 0.14, 1.3  # inches: all rows at most, one row at most, the plot of blocks
TOKENS = 0.17  # inches: a stream's row
SIDE, GAP = 0.5, 0.12  # inches: a block's width, and between two blocks
KEY = 0.19  # inches: a line of the key
MOST_NAMES = 14  # in the key; more would not fit beside the blocks


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
        found = [
            [(a, row - thin), (a, row + thin), (b, row + thin), (b, row - thin)]
            for row, own in enumerate(rows)
            for name, a, b in own
            if name == kind
        ]
        axes.add_collection(PolyCollection(found, facecolor=color, linewidth=0), autolim=False)
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
        guides(axes, hlines={f"all {capacity} blocks": capacity})
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
            low = len(streams) - (0.0 if arrivals else 0.5)  # labels stand below the rows
            axes.set(ylim=(low, -0.5))
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


def blocks(
    sequences: Mapping[str, tuple[Sequence[int], int]],
    count: int,
    block_size: int,
    *,
    known: Iterable[int] = (),
    columns: int = 12,
    title: str = "",
):
    """Draw each block as a box, in the order of memory, in the colours of its sequences.

    The full colour is of slots with a token, a pale one of slots that are reserved and empty. A
    block that several sequences share has a stripe for each. A free block is white.

    Args:
        sequences: name -> (its table: the numbers of its blocks; its length in tokens).
        count: all blocks.
        block_size: slots in a block.
        known: blocks whose tokens are known as a prefix: a dotted frame if they are free.
        columns: boxes in a row.
        title: above the boxes.

    Raises:
        ValueError: there is no block to draw, or a table is wrong: a block that is not there, one
            that is there twice, or too few for the length.
    """
    check_tables(sequences, count, block_size)
    colors = {n: SERIES_COLORS[i % len(SERIES_COLORS)] for i, n in enumerate(sequences)}
    owners, known = owners_of(sequences, block_size), set(known)
    columns, step, found = min(columns, count), SIDE + GAP, []
    for block in range(count):
        left, top, own = block % columns * step, block // columns * step, owners.get(block, [])
        for stripe, (name, filled) in enumerate(own):
            tall, y = SIDE / len(own), top + SIDE * stripe / len(own)
            found.append(Box(left, y, SIDE, tall, colors[name], line=0, alpha=0.2))
            found.append(Box(left, y, SIDE * filled / block_size, tall, colors[name], line=0))
        frame = {"edge": INK if own else FAINT, "line": 0.8}
        if block in known and not own:
            frame = {"edge": GREY, "line": 1.4, "dash": ":"}
        found.append(Box(left, top, SIDE, SIDE, label=str(block), **frame))
    named, above = list(sequences)[:MOST_NAMES], GAP + 0.3 * bool(title)
    texts = [Text(0, -GAP - 0.12, title, "left", 10.5)] if title else []
    for line, name in enumerate(named):
        found.append(Box(columns * step, KEY * line, 0.12, 0.1, colors[name], line=0))
        words = label(name, sequences)
        texts.append(Text(columns * step + 0.2, KEY * line + 0.05, words, "left", SMALL))
    if more := len(sequences) - len(named):
        place = (columns * step + 0.2, KEY * len(named) + 0.05)
        texts.append(Text(*place, f"and {more} more", "left", SMALL))
    wide = columns * step + 2 * GAP + (1.9 if named else 0)
    tall = max(-(-count // columns) * step, KEY * (len(named) + 1)) + above
    return boxes(
        found,
        size=(wide, tall),
        xlim=(-GAP, wide - GAP),
        ylim=(-above, tall - above),
        texts=texts,
        fontsize=SMALL,
        clear=True,
        words=headed(title, blocks_in_words(sequences, owners, count, block_size)),
    )


def check_tables(sequences, count: int, block_size: int):
    if count < 1 or block_size < 1:
        raise ValueError(f"{count} blocks of {block_size} slots; there must be 1 or more of each")
    for name, (table, length) in sequences.items():
        wrong = [block for block in table if not 0 <= block < count]
        if wrong:
            raise ValueError(f"{name} has block {wrong[0]}, but there are blocks 0 to {count - 1}")
        if len(set(table)) < len(table):
            raise ValueError(f"{name} has a block twice in its table {list(table)}")
        if length > len(table) * block_size:
            raise ValueError(f"{name} has {length} tokens, but {len(table)} blocks of {block_size}")


def owners_of(sequences, block_size: int) -> dict[int, list[tuple[str, int]]]:
    """Block -> its owners: (the sequence's name, how many of the block's slots it has filled)."""
    owners: dict[int, list[tuple[str, int]]] = {}
    for name, (table, length) in sequences.items():
        for place, block in enumerate(table):
            filled = min(max(length - place * block_size, 0), block_size)
            owners.setdefault(block, []).append((name, filled))
    return owners


def label(name: str, sequences) -> str:
    length = sequences[name][1]
    return f"{name}, {length} token{'s' * (length != 1)}"


def blocks_in_words(sequences, owners, count: int, block_size: int) -> str:
    """What is drawn, in words."""
    empty = sum(block_size - max(filled for _, filled in own) for own in owners.values())
    shared = sorted(block for block, own in owners.items() if len(own) > 1)
    said = [f"{count} blocks of {block_size} slots, {count - len(owners)} of them free."]
    said += [
        f"{label(name, sequences)}: blocks {', '.join(map(str, table)) or 'none'}."
        for name, (table, _) in sequences.items()
    ]
    if shared:
        said.append(f"Shared: blocks {', '.join(map(str, shared))}.")
    return " ".join([*said, f"{empty} reserved slots are empty."])
