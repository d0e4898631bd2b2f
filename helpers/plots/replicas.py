"""A step of data parallel: shards of the batch, equal replicas, one mean of their gradients."""

from helpers.plots.style import RANK_COLORS

ROW = 0.34  # inches; a rank's lane is as high as its rows, or a box
COLUMNS = {"batch": 0.0, "shard": 1.5, "replica": 3.0, "gradient": 5.0, "mean": 6.8, "update": 8.4}


def replicas(shards, *, noun: str = "rows"):
    """Draw the shard of each rank, and the work of each rank on its shard.

    Args:
        shards: for each rank the numbers of its rows, in rank order, drawn in the rank's colour.
        noun: the name of a batch's parts, in the plural.

    Returns:
        The Picture.

    Raises:
        ValueError: there are no ranks.
    """
    from matplotlib.patches import FancyBboxPatch

    from helpers.plots.picture import Picture

    shards = [list(shard) for shard in shards]
    if not shards:
        raise ValueError("no ranks to draw")
    lane = max(2, *map(len, shards)) + 0.6  # in rows
    height = lane * len(shards)
    figure = Picture(figsize=(7.6, ROW * (height + 2.0)), layout="none")
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set(xlim=(-0.7, 9.1), ylim=(height + 0.3, -1.7))
    axes.axis("off")

    def box(column, top, tall, label, color, width=0.9, alpha=0.35):
        left = COLUMNS[column] - width / 2
        style = "round,pad=0,rounding_size=0.08"
        patch = FancyBboxPatch((left, top), width, tall, boxstyle=style, fc=color, alpha=alpha)
        axes.add_patch(patch)
        axes.text(COLUMNS[column], top + tall / 2, label, ha="center", va="center", fontsize=9)

    def arrow(start, end, y, to=None):
        style = {"arrowstyle": "->", "color": "#666666", "lw": 1.2}
        axes.annotate("", (end, y if to is None else to), (start, y), arrowprops=style)

    for column, title in {
        "batch": f"global batch\nof {sum(map(len, shards))} {noun}",
        "shard": "shard",
        "replica": "the same model\non every rank",
        "gradient": "gradient of\nits own shard",
        "mean": "all-reduce",
        "update": "the same\nupdate",
    }.items():
        axes.text(COLUMNS[column], -0.9, title, ha="center", va="center", fontsize=9)
    place = (height - sum(map(len, shards))) / 2  # the batch stands in the middle
    for rank, shard in enumerate(shards):
        color = RANK_COLORS[rank % len(RANK_COLORS)]
        middle = lane * (rank + 0.5)
        top = middle - len(shard) / 2
        arrow(0.5, 0.95, place + len(shard) / 2, middle)
        for row in shard:
            box("batch", place + 0.05, 0.9, str(row), color)
            box("shard", top + 0.05, 0.9, str(row), color)
            place, top = place + 1, top + 1
        box("replica", middle - 0.8, 1.6, f"rank {rank}", "#bbbbbb", 1.2)
        box("gradient", middle - 0.6, 1.2, f"$g_{{{rank}}}$", color)
        box("update", middle - 0.6, 1.2, r"$\bar g$", "#bbbbbb")
        for start, end in ((2.05, 2.35), (3.7, 4.45), (5.55, 6.0), (7.5, 7.85)):
            arrow(start, end, middle)
    said = "; ".join(f"rank {r}: {', '.join(map(str, s)) or 'none'}" for r, s in enumerate(shards))
    figure.alt = (
        f"A step of data parallel. A global batch of {sum(map(len, shards))} {noun} is cut into "
        f"shards. {said[:1].upper()}{said[1:]}. Every rank has the same model and computes the "
        "gradient of its own shard. An all-reduce gives every rank the mean. Every rank makes "
        "the same update."
    )
    box("mean", 0.1, height - 0.2, r"$\bar g = \frac{1}{N}\sum_r g_r$", RANK_COLORS[4], 1.4, 0.2)
    return figure
