"""The same tensor on every rank, drawn, before and after a collective."""

from collections.abc import Mapping, Sequence

from helpers.plots.style import RANK_COLORS

BOX = 0.56  # inches; lengths below are in boxes
GAP = 1.2  # between two states
LETTER = 0.17  # of a title


def holdings(states: Mapping[str, Sequence[Sequence | None]], *, owners=None):
    """Draw a row of boxes for each rank, one column of rows for each state.

    Args:
        states: title -> for each rank its values, 1-D (a list or a tensor); None or an empty list
            if the rank has no value.
        owners: title -> for each rank the source rank of each value, which gives the colour; None
            for a value made from several ranks. Without owners, the values of the first state have
            their rank's colour, and the values of later states are grey.

    Returns:
        The Picture.
    """
    from matplotlib.patches import FancyBboxPatch

    from helpers.plots.picture import Picture

    rows = {title: [as_list(values) for values in held] for title, held in states.items()}
    ranks = max(len(held) for held in rows.values())
    widths = {title: max(1, *(len(v) for v in held)) for title, held in rows.items()}
    spans = {title: max(width, LETTER * len(title)) for title, width in widths.items()}
    total = sum(spans.values()) + GAP * (len(rows) - 1)
    figure = Picture(figsize=(BOX * (total + 1.75), BOX * (ranks + 0.9)), layout="none")
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set(xlim=(-1.6, total + 0.15), ylim=(ranks - 0.4, -1.3))
    axes.axis("off")
    for rank in range(ranks):
        axes.text(-0.25, rank, f"rank {rank}", ha="right", va="center", fontsize=10)
    start = 0.0
    for number, (title, held) in enumerate(rows.items()):
        left = start + (spans[title] - widths[title]) / 2  # the boxes stand below their title
        axes.text(left + widths[title] / 2, -0.85, title, ha="center", va="center", fontsize=11)
        if number:
            middle = (ranks - 1) / 2
            arrow = {"arrowstyle": "->", "lw": 1.5, "color": "#666666"}
            axes.annotate("", (start - 0.2, middle), (start - 1.0, middle), arrowprops=arrow)
        for rank, values in enumerate(held):
            for column, value in enumerate(values):
                owner = rank if number == 0 else None
                if owners and title in owners:
                    owner = owners[title][rank][column]
                color = "#dddddd" if owner is None else RANK_COLORS[owner % len(RANK_COLORS)]
                axes.add_patch(
                    FancyBboxPatch(
                        (left + column + 0.07, rank - 0.38),
                        0.86,
                        0.76,
                        boxstyle="round,pad=0,rounding_size=0.1",
                        facecolor=color,
                        alpha=0.9 if owner is None else 0.35,
                        edgecolor="#444444",
                        linewidth=0.8,
                    )
                )
                text = number_text(value)
                axes.text(left + column + 0.5, rank, text, ha="center", va="center", fontsize=10)
        start += spans[title] + GAP
    figure.alt = " ".join(
        f"{title[:1].upper()}{title[1:]}. {ranks_text(held)}." for title, held in rows.items()
    )
    return figure


def ranks_text(held) -> str:
    """The values of each rank, in words."""
    return "; ".join(
        f"rank {rank}: {', '.join(map(number_text, values)) or 'nothing'}"
        for rank, values in enumerate(held)
    )


def as_list(values) -> list:
    if values is None:
        return []
    return values.tolist() if hasattr(values, "tolist") else list(values)


def number_text(value) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
