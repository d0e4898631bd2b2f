"""Whether the parts of all ranks make up the plain model: each number once, and holders agreed.

A wrong part would train on, slightly wrong; here it is an error at the start.
"""

import math
from collections.abc import Mapping, Sequence

from helpers.state.part import Part
from helpers.state.pieces import common, pieces, volume

Ranks = Sequence[Mapping[str, Part]]


def check(ranks: Ranks, shapes: Mapping[str, tuple[int, ...]]):
    """Check that the parts fit together.

    Raises:
        ValueError: two ranks say different shapes of one tensor; a number is in no part, or in two
            parts that are not equal; the holders are not the ranks that hold the numbers; ranks do
            not agree on a pending sum.
    """
    regions: dict[str, dict[tuple, dict[int, Part]]] = {name: {} for name in shapes}
    for rank, parts in enumerate(ranks):
        for part in parts.values():
            if part.shape != shapes[part.name]:
                raise ValueError(
                    f"{part.name} is {shapes[part.name]} on one rank and {part.shape} on {rank}"
                )
            if rank not in part.holders:
                raise ValueError(f"rank {rank} has {part}, and is not among its holders")
            boxes = tuple(sorted(piece.box for piece in pieces(part)))
            same = regions[part.name].setdefault(boxes, {})
            if boxes and rank in same:
                raise ValueError(f"rank {rank} holds the same numbers twice: {part}")
            same[rank] = part
    for name, found in regions.items():
        found.pop((), None)  # parts that hold nothing
        check_cover(name, shapes[name], list(found))
        for same in found.values():
            check_holders(same)
            check_pending(same)


def check_cover(name: str, shape: tuple[int, ...], regions: list[tuple]):
    """Each number is in one region."""
    boxes = sorted(box for region in regions for box in region)
    for i, box in enumerate(boxes):
        for other in boxes[i + 1 :]:
            if box and other[0][0] >= box[0][1]:
                break  # sorted by the first dim: no later box reaches back
            if (both := common(box, other)) is not None:
                raise ValueError(f"{name} {shape}: {both} is in two parts that are not equal")
    held = sum(map(volume, boxes))
    if held != math.prod(shape):
        raise ValueError(f"{name} {shape}: the ranks hold {held} of its {math.prod(shape)} numbers")


def check_holders(same: Mapping[int, Part]):
    for rank, part in same.items():
        if part.holders != tuple(same):
            raise ValueError(f"rank {rank} has {part}, and ranks {tuple(same)} hold it")


def check_pending(same: Mapping[int, Part]):
    """The members of a group add up the same numbers, as the same sum of the sequence."""
    for rank, part in same.items():
        for turn, group in enumerate(part.pending):
            for member in group:
                theirs = same[member]
                if theirs.pending[turn : turn + 1] != (group,):
                    raise ValueError(f"rank {rank} has {part}; rank {member} has {theirs}")
                if (theirs.cuts, theirs.flat) != (part.cuts, part.flat):
                    raise ValueError(f"{part.name}: ranks {rank} and {member} store it differently")
        counted = [rank]  # whose gradients are in this rank's, when all sums are made
        for turn in reversed(range(len(part.pending))):
            counted = [other for r in counted for other in same[r].pending[turn]]
        if len(set(counted)) != len(counted):
            raise ValueError(f"{part}: its sums count a rank twice")
