"""Compare two trainings that must be equal: their losses, and their differences by step."""

from collections.abc import Mapping, Sequence

from helpers.plots.curve import curves
from helpers.plots.panel import panels
from helpers.plots.picture import Picture
from helpers.plots.style import PROGRAM_COLORS


def equivalence(
    name: str,
    one_process: Sequence[float],
    ranks: Sequence[float],
    differences: Mapping[str, Sequence[float]],
    tolerance: float,
) -> Picture:
    """Draw the two losses on the left; on the right their differences and the tolerance.

    Args:
        name: of the training on ranks.
        one_process, ranks: the losses by step.
        differences: "loss", "gradients", … -> the largest absolute difference by step. Zeros are
            drawn at the bottom of the logarithmic axis.
    """
    picture = panels(2, width=7.6, height=2.8)
    left, right = picture.axes
    seen = [v for values in differences.values() for v in values if v > 0]
    floor = min([*seen, tolerance]) / 10
    raised = {what: [max(v, floor) for v in values] for what, values in differences.items()}
    reference = {"one process": {"lw": 5, "alpha": 0.6, "marker": ""}}
    own = {name: {"color": PROGRAM_COLORS["ours"], "marker": ""}}
    losses = {"one process": list(one_process), name: list(ranks)}
    above = {"xlabel": "step", "key": "above"}
    curves(losses, ylabel="loss", styles=reference | own, on=left, **above)
    curves(
        raised,
        log="y",
        ylabel="largest difference",
        hlines={"tolerance": tolerance},
        styles={what: {"ms": 3, "lw": 1} for what in raised},
        on=right,
        **above,
    )
    return picture
