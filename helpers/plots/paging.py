"""The memory of a cache, block by block: which sequence has which block, and what is empty."""

from collections.abc import Iterable, Mapping, Sequence

from helpers.plots.alt import headed
from helpers.plots.boxes import Box, Text, boxes
from helpers.plots.style import FAINT, GREY, INK, SERIES_COLORS, SMALL

SIDE, GAP = 0.5, 0.12  # inches: a block's width, and between two blocks
KEY = 0.19  # inches: a line of the key
MOST_NAMES = 14  # in the key; more would not fit beside the blocks


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
    check(sequences, count, block_size)
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
        alt=headed(title, words_of(sequences, owners, count, block_size)),
    )


def check(sequences, count: int, block_size: int):
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


def words_of(sequences, owners, count: int, block_size: int) -> str:
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
