"""One matrix, drawn once for each rank, with the part that the rank holds."""

from collections.abc import Sequence

from helpers.plots.style import FAINT, GREY, RANK_COLORS

SIDE = 1.0  # inches of a matrix's longer side
GAP = 0.35  # inches between two matrices


def shares(
    shape: Sequence[int],
    boxes: Sequence[Sequence[Sequence[tuple[int, int]]]],
    *,
    names: Sequence[str] = (),
    columns: int = 8,
    title: str = "",
):
    """Draw a tensor's outline for each rank, and fill the boxes that the rank holds.

    Args:
        shape: (rows, columns), or (n,), which is drawn as one row.
        boxes: for each rank its boxes: a (start, stop) for each dim.
        names: above each outline; default rank 0, 1, …
        columns: outlines side by side.

    Returns:
        The Picture.
    """
    from matplotlib.patches import Rectangle

    from helpers.plots.picture import Picture

    names = names or [f"rank {rank}" for rank in range(len(boxes))]
    tall, wide = shape if len(shape) > 1 else (1, *shape)
    scale = SIDE / max(tall, wide)
    width, height = max(wide * scale, 0.12), max(tall * scale, 0.12)
    tall, wide = max(tall, 1), max(wide, 1)  # an empty tensor has boxes of no size
    across = min(columns, len(boxes))
    down = -(-len(boxes) // across)
    step = (max(width, 0.55) + GAP, height + GAP + 0.1)
    size = (across * step[0] + GAP, down * step[1] + 0.3 + 0.3 * bool(title))
    figure = Picture(figsize=size, layout="none")
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set(xlim=(0, size[0]), ylim=(0, size[1]))
    axes.axis("off")
    if title:
        axes.text(size[0] / 2, size[1] - 0.2, title, ha="center", va="center", fontsize=10)
    for rank, own in enumerate(boxes):
        row, column = divmod(rank, across)
        left = GAP + column * step[0]
        top = size[1] - 0.3 * bool(title) - 0.35 - row * step[1]
        axes.text(left, top + 0.06, names[rank], fontsize=8)
        axes.add_patch(
            Rectangle((left, top - height), width, height, facecolor=FAINT, edgecolor=GREY, lw=0.6)
        )
        for box in own:
            rows, cells = (box[0], box[1]) if len(shape) > 1 else ((0, 1), box[0])
            corner = left + width * cells[0] / wide, top - height * rows[1] / tall
            part = width * (cells[1] - cells[0]) / wide, height * (rows[1] - rows[0]) / tall
            color = RANK_COLORS[rank % len(RANK_COLORS)]
            axes.add_patch(Rectangle(corner, *part, facecolor=color, edgecolor=GREY, lw=0.6))
    held = "; ".join(
        f"{name}: {' and '.join(map(str, own)) or 'nothing'}"
        for name, own in zip(names, boxes, strict=True)
    )
    head = f"{title}. " if title else ""
    figure.alt = f"{head}The part of the tensor that each rank holds. {held}."
    return figure
