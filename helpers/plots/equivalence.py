"""Two trainings that should be one: their losses over each other, their differences by step."""

from collections.abc import Mapping, Sequence

from helpers.plots.picture import Picture
from helpers.plots.style import RANK_COLORS


def equivalence(
    name: str,
    one_process: Sequence[float],
    ranks: Sequence[float],
    differences: Mapping[str, Sequence[float]],
    tolerance: float,
) -> Picture:
    """Left the two losses, right what differs, on a log scale, with the tolerance as a line.

    Args:
        differences: what -> the largest absolute difference by step. Zeros stand at the bottom.
    """
    figure = Picture(figsize=(7.2, 2.6), dpi=80, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(one_process, color="#999999", lw=5, alpha=0.6, label="one process")
    left.plot(ranks, color=RANK_COLORS[0], lw=1.4, label=name)
    left.set(xlabel="step", ylabel="loss")
    seen = [v for values in differences.values() for v in values if 0 < v < float("inf")]
    floor = min([*seen, tolerance]) / 10
    for (what, values), color in zip(differences.items(), RANK_COLORS, strict=False):
        right.plot([max(v, floor) for v in values], "o-", ms=3, lw=1, color=color, label=what)
    right.axhline(tolerance, color="#444444", lw=0.8, ls="--")
    right.annotate(
        "tolerance", (0, tolerance), xytext=(2, -10), textcoords="offset points", fontsize=8
    )
    right.set(yscale="log", xlabel="step", ylabel="largest difference")
    for axes in (left, right):
        # above, where no loss can run through it
        axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
