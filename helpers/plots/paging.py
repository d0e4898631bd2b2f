"""The memory of a cache, block by block: which sequence has which block, and what is empty."""

from collections.abc import Iterable, Mapping, Sequence

from helpers.plots.style import FAINT, GREY, INK, SERIES_COLORS, SMALL

BOX, GAP = 0.5, 0.12  # inches: a block's width, and between two blocks
MOST_NAMES = 14  # in the key; more would not fit beside the blocks


def blocks(
    sequences: Mapping[str, tuple[Sequence[int], int]],
    count: int,
    block_size: int,
    *,
    known: Iterable[int] = (),
    columns: int = 12,
    title: str = "",
    alt: str = "",
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
        alt: the alternative text; by default a description.

    Returns:
        The Picture.

    Raises:
        ValueError: there is no block to draw, or a table is wrong: a block that is not there, one
            that is there twice, or too few for the length.
    """
    from matplotlib.patches import Patch, Rectangle

    from helpers.plots.picture import Picture

    check(sequences, count, block_size)
    colors = {n: SERIES_COLORS[i % len(SERIES_COLORS)] for i, n in enumerate(sequences)}
    owners = owners_of(sequences, block_size)
    columns, known = min(columns, count), set(known)
    rows = -(-count // columns)
    step = BOX + GAP
    named = list(sequences)[:MOST_NAMES]
    size = (
        columns * step + 2 * GAP + (1.9 if named else 0),
        max(rows * step, 0.21 * (len(named) + 1)) + GAP + 0.3 * bool(title),
    )
    figure = Picture(figsize=size, layout="none")
    figure.set_layout_engine("none")  # the boxes have their places
    axes = figure.add_axes([0, 0, 1, 1])
    above = GAP + 0.3 * bool(title)
    axes.set(xlim=(-GAP, size[0] - GAP), ylim=(size[1] - above, -above))
    axes.axis("off")
    for block in range(count):
        left, top = block % columns * step, block // columns * step
        own = owners.get(block, [])
        for stripe, (name, filled) in enumerate(own):
            tall, y = BOX / len(own), top + BOX * stripe / len(own)
            pale = Rectangle((left, y), BOX, tall, color=colors[name], alpha=0.2, lw=0)
            axes.add_patch(pale)
            width = BOX * filled / block_size
            axes.add_patch(Rectangle((left, y), width, tall, color=colors[name], lw=0))
        dotted = block in known and not own
        edge = GREY if dotted else INK if own else FAINT
        frame = {"ls": ":" if dotted else "-", "lw": 1.4 if dotted else 0.8}
        axes.add_patch(Rectangle((left, top), BOX, BOX, fill=False, ec=edge, **frame))
        box = {"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none", "alpha": 0.85}
        middle = (left + BOX / 2, top + BOX / 2)
        axes.text(*middle, str(block), ha="center", va="center", fontsize=SMALL, bbox=box)
    if title:
        axes.text(0, -GAP - 0.12, title, va="center", fontsize=10.5)
    if named:
        handles = [Patch(color=colors[name], label=label(name, sequences)) for name in named]
        if len(sequences) > len(named):
            handles.append(Patch(color="none", label=f"and {len(sequences) - len(named)} more"))
        place = (columns * step, 0)
        style = {"loc": "upper left", "fontsize": SMALL, "handlelength": 1.0}
        style |= {"borderaxespad": 0, "borderpad": 0, "frameon": False}
        axes.legend(handles=handles, bbox_to_anchor=place, bbox_transform=axes.transData, **style)
    figure.alt = alt or words(sequences, owners, count, block_size, title)
    return figure


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


def words(sequences, owners, count: int, block_size: int, title: str) -> str:
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
    said.append(f"{empty} reserved slots are empty.")
    return " ".join([f"{title}."] * bool(title) + said)
