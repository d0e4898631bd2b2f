"""Why a tensor is not the twin's: well-known mistakes of distributed training, by their marks."""

from collections.abc import Sequence

import torch

from helpers.comm.mesh import Layout

SAME = 1e-6  # relative: what counts as proportional


def guess(ours: torch.Tensor, theirs: torch.Tensor, layout: Layout, kind: str) -> str:
    """A sentence about how ours looks beside the twin's; "" where nothing comes to mind.

    Args:
        kind: the pass, as `locate.PASSES` names it.
    """
    ours, theirs = ours.cpu().double().flatten(), theirs.cpu().double().flatten()
    if not ours.isfinite().all():
        return "It is not finite: a division by zero, or an overflow?"
    if not ours.any():
        zero = {
            "update": "It is zero: is the optimizer given these parameters, and stepped?",
            "moments": "It is not there: does `load` bring back the optimizer's state?",
        }
        return zero.get(kind, "It is zero: was something detached, left out or never received?")
    factor = factor_of(ours, theirs)
    if factor is None or kind in ("start", "loss", "moments"):
        return ""
    if kind == "update":
        return f"{factor:.6g} times the twin's: another learning rate, or another clipping?"
    sizes = {axis: layout.size(axis) for axis in layout.axes if layout.size(axis) > 1}
    for axis, size in sizes.items():
        if abs(factor * size - 1) < SAME:
            return (
                f"{share(size)} the twin's: a missing sum over {axis}, or a division by its "
                f"{size} ranks too many?"
            )
        if abs(factor / size - 1) < SAME:
            return f"{size} times the twin's: summed over {axis} twice, or not divided by {size}?"
    if abs(factor + 1) < SAME:
        return "It is the twin's with the other sign."
    return f"{factor:.6g} times the twin's: divided by another count, this rank's own targets say?"


def factor_of(ours: torch.Tensor, theirs: torch.Tensor) -> float | None:
    """By which number ours is a multiple of theirs; None where it is none."""
    square = theirs @ theirs
    if not square:
        return None
    factor = (ours @ theirs / square).item()
    rest = (ours - factor * theirs).norm()
    return factor if rest <= SAME * ours.norm() else None


def missing_sum(
    every: Sequence[torch.Tensor | None], theirs: torch.Tensor, rank: int, layout: Layout
) -> str:
    """Whether the ranks' gradients would add up to the twin's, had they been summed."""
    theirs = theirs.cpu().double()
    for axis in layout.axes:
        group = layout.group_of(rank, axis)
        if len(group) == 1 or any(every[r] is None for r in group):
            continue
        total = sum(every[r].cpu().double() for r in group)
        if (total - theirs).norm() <= SAME * theirs.norm():
            same = (every[rank].cpu().double() * len(group) - theirs).norm() <= SAME * theirs.norm()
            if not same:
                return f"The ranks' gradients add up to the twin's: a missing sum over {axis}?"
    return ""


def unseen(numbers: torch.Tensor, ranks: Sequence[torch.Tensor]) -> str:
    """Sequences of the global batch that are in no rank's batch."""
    lost = sorted(set(numbers.tolist()) - {n for own in ranks for n in own.tolist()})
    if not lost:
        return "Is the loss summed over all ranks, and divided by all targets?"
    shown = ", ".join(map(str, lost[:8])) + (" …" if lost[8:] else "")
    return f"Sequences {shown} of the batch are on no rank: do two ranks work on the same shard?"


def share(size: int) -> str:
    return {2: "Half", 3: "A third of", 4: "A quarter of"}.get(size, f"1/{size} of")
