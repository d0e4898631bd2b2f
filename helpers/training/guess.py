"""Guess why a tensor differs from the twin's: the signs of well-known mistakes."""

from collections.abc import Sequence

import torch

from helpers.comm.mesh import Layout

SAME = 1e-6  # relative error below which two tensors count as proportional


def guess(ours: torch.Tensor, theirs: torch.Tensor, layout: Layout, kind: str) -> str:
    """Return a sentence about the likely mistake; "" if no known mistake fits.

    Args:
        kind: the pass, one of `locate.PASSES`.
    """
    ours, theirs = ours.cpu().double().flatten(), theirs.cpu().double().flatten()
    if not ours.isfinite().all():
        return "It is not finite. Is there a division by zero, or an overflow?"
    if not ours.any():
        zero = {
            "update": "It is zero. Does the optimizer have these parameters, and does it step?",
            "moments": "It is missing. Does `load` restore the optimizer's state?",
        }
        return zero.get(kind, "It is zero. Was it detached, left out or never received?")
    factor = factor_of(ours, theirs)
    if factor is None or kind in ("start", "loss", "moments"):
        return ""
    if kind == "update":
        return (
            f"It is {factor:.6g} times the twin's. Does the learning rate or the clipping differ?"
        )
    sizes = {axis: layout.size(axis) for axis in layout.axes if layout.size(axis) > 1}
    for axis, size in sizes.items():
        if abs(factor * size - 1) < SAME:
            return (
                f"It is {share(size)} the twin's. Is a sum over {axis} missing, or is it divided "
                f"by {size} twice?"
            )
        if abs(factor / size - 1) < SAME:
            return (
                f"It is {size} times the twin's. Is it summed over {axis} twice, or not divided by "
                f"{size}?"
            )
    if abs(factor + 1) < SAME:
        return "It has the opposite sign of the twin's."
    return (
        f"It is {factor:.6g} times the twin's. Is it divided by another count, such as this "
        "rank's own targets?"
    )


def factor_of(ours: torch.Tensor, theirs: torch.Tensor) -> float | None:
    """Return the factor by which ours is a multiple of theirs; None if it is no multiple."""
    square = theirs @ theirs
    if not square:
        return None
    factor = (ours @ theirs / square).item()
    rest = (ours - factor * theirs).norm()
    return factor if rest <= SAME * ours.norm() else None


def missing_sum(
    every: Sequence[torch.Tensor | None], theirs: torch.Tensor, rank: int, layout: Layout
) -> str:
    """Check whether the ranks' tensors add up to the twin's: then a sum is missing."""
    theirs = theirs.cpu().double()
    for axis in layout.axes:
        group = layout.group_of(rank, axis)
        if len(group) == 1 or any(every[r] is None for r in group):
            continue
        total = sum(every[r].cpu().double() for r in group)
        if (total - theirs).norm() <= SAME * theirs.norm():
            same = (every[rank].cpu().double() * len(group) - theirs).norm() <= SAME * theirs.norm()
            if not same:
                return f"The ranks' numbers add up to the twin's. Is a sum over {axis} missing?"
    return ""


def apart(every: Sequence[torch.Tensor | None], rank: int, layout: Layout) -> str:
    """Check whether ranks that should have the same tensor have different ones: they drift."""
    own = every[rank].cpu().double()
    for axis in layout.axes:
        group = layout.group_of(rank, axis)
        if len(group) == 1 or any(every[r] is None for r in group):
            continue
        for other in group:
            if (every[other].cpu().double() - own).norm() > SAME * own.norm():
                return (
                    f"The ranks {rank} and {other} drift apart: along {axis} they should have the "
                    "same numbers here. Does each rank draw its own dropout, or is a sum missing?"
                )
    return ""


def unseen(numbers: torch.Tensor, ranks: Sequence[torch.Tensor]) -> str:
    """List the sequences of the global batch that no rank received."""
    lost = sorted(set(numbers.tolist()) - {n for own in ranks for n in own.tolist()})
    if not lost:
        return "Is the loss summed over all ranks, and divided by all targets?"
    shown = ", ".join(map(str, lost[:8])) + (" …" if lost[8:] else "")
    return f"No rank has the sequences {shown} of the batch. Do two ranks have the same shard?"


def share(size: int) -> str:
    return {2: "half", 3: "a third of", 4: "a quarter of"}.get(size, f"1/{size} of")
