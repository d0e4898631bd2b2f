"""Whether the parts of all ranks make up the plain model: each number once, and holders agreed.

A wrong part would train on, slightly wrong; here it is an error at the start.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helpers.state.part import Part
from helpers.state.pieces import Box, common, pieces, volume

Ranks = Sequence[Mapping[str, Part]]  # for each rank its parts, by key


@dataclass(frozen=True, kw_only=True)
class Region:
    """Numbers of one plain tensor that the same ranks hold. Regions of a tensor do not overlap.

    Attributes:
        name: of the plain tensor.
        boxes: of the plain tensor, in order.
        keys: rank -> its key of the part that holds the region. Ranks in order.
    """

    name: str
    boxes: tuple[Box, ...]
    keys: Mapping[int, str]


def check(ranks: Ranks, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[Region]]:
    """Check that the parts fit together.

    Returns:
        plain name -> its regions, in an order that does not depend on the rank that asks.

    Raises:
        ValueError: two ranks give different shapes of one tensor; a number is in no part, or in two
            parts that are not equal; the holders are not the ranks that hold the numbers; ranks do
            not agree on a pending sum.
    """
    found: dict[str, dict[tuple[Box, ...], dict[int, str]]] = {name: {} for name in shapes}
    for rank, parts in enumerate(ranks):
        for key, part in parts.items():
            if part.shape != shapes[part.name]:
                raise ValueError(
                    f"{part.name} is {part.shape} on rank {rank}, {shapes[part.name]} on another"
                )
            if rank not in part.holders:
                raise ValueError(f"rank {rank} has {part}, and is not among its holders")
            if part.numel == 0:
                continue
            boxes = tuple(sorted(piece.box for piece in pieces(part)))
            same = found[part.name].setdefault(boxes, {})
            if rank in same:
                raise ValueError(f"rank {rank} holds the same numbers twice: {part}")
            same[rank] = key
    for name, regions in found.items():
        check_cover(name, shapes[name], list(regions))
        for keys in regions.values():
            same = {rank: ranks[rank][key] for rank, key in keys.items()}
            check_holders(same)
            check_pending(same)
    return {
        name: [Region(name=name, boxes=boxes, keys=regions[boxes]) for boxes in sorted(regions)]
        for name, regions in found.items()
    }


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
    counted = {rank: summed(rank, same) for rank in same}
    for rank, part in same.items():
        ranks = set(counted[rank])
        if len(ranks) != len(counted[rank]):
            raise ValueError(f"the sums of {part} count a rank twice: {counted[rank]}")
        for other in ranks:
            if set(counted[other]) != ranks:
                raise ValueError(f"the sums of {part} are of other ranks on rank {other}")


def summed(rank: int, same: Mapping[int, Part]) -> list[int]:
    """The ranks whose gradients this one has, when all sums are made: from the last sum back."""
    counted = [rank]
    for turn in reversed(range(len(same[rank].pending))):
        counted = [other for r in counted for other in same[r].pending[turn]]
    return counted
