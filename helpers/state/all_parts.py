"""The parts of every rank, checked: which rank holds which numbers of each plain tensor.

A wrong part does not stop training, but makes its results slightly wrong. The check turns the wrong
part into an error before the first step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from types import MappingProxyType

import torch.distributed as dist

from helpers.state.facts import exchange
from helpers.state.part import Cut, Part
from helpers.state.pieces import Box, Piece, common, pieces, volume

Ranks = Sequence[Mapping[str, Part]]  # for each rank, its parts by key


@dataclass(frozen=True, kw_only=True)
class Region:
    """Numbers of one plain tensor that the same ranks hold. Regions do not overlap.

    Attributes:
        name: of the plain tensor.
        boxes: of the plain tensor, sorted.
        keys: rank -> that rank's key of the part that holds the region, in the order of ranks.
    """

    name: str
    boxes: tuple[Box, ...]
    keys: Mapping[int, str]


class AllParts:
    """The parts of every rank, checked to make up the plain model.

    Args:
        ranks: for each rank of the world, its parts by key. A key is a rank's own name for a
            tensor. A rank may hold several parts of one plain tensor, under several keys. A rank
            may hold nothing: {}.

    Attributes:
        ranks: as given.
        shapes: plain name -> plain shape, in the same order on every rank.
        regions: plain name -> its regions, in the same order on every rank. Empty parts are in no
            region.

    Raises:
        ValueError: as `check` raises.
    """

    ranks: Ranks
    shapes: Mapping[str, tuple[int, ...]]
    regions: Mapping[str, Sequence[Region]]

    def __init__(self, ranks: Iterable[Mapping[str, Part]]):
        self.ranks = tuple(MappingProxyType(dict(parts)) for parts in ranks)
        self.shapes = {p.name: p.shape for parts in self.ranks for p in parts.values()}
        self.regions = check(self.ranks, self.shapes)
        self._pieces: dict[tuple[int, str], list[Piece]] = {}

    @classmethod
    def exchanged(
        cls, own: Mapping[str, Part], group: dist.ProcessGroup | None = None
    ) -> "AllParts":
        """Exchange the parts of all ranks. Every rank of the world calls it with its own parts."""
        given = exchange([[key, asdict(part)] for key, part in own.items()], group)
        return cls([{key: decoded(fields) for key, fields in parts} for parts in given])

    @cached_property
    def completed(self) -> "AllParts":
        """The same parts, after all pending sums have been made."""
        return AllParts(
            {key: part.completed() for key, part in parts.items()} for parts in self.ranks
        )

    @cached_property
    def whole(self) -> "AllParts":
        """The layout in which every rank holds every tensor whole, under its plain name."""
        everyone = tuple(range(len(self.ranks)))
        plain = {
            name: Part(name=name, shape=shape, holders=everyone)
            for name, shape in self.shapes.items()
        }
        return AllParts([plain] * len(self.ranks))

    def named(self, names: Iterable[str]) -> "AllParts":
        """The parts of these plain tensors only."""
        names = set(names)
        return AllParts(
            {key: part for key, part in parts.items() if part.name in names} for parts in self.ranks
        )

    def pieces(self, rank: int, key: str) -> list[Piece]:
        """The pieces of one part."""
        if (rank, key) not in self._pieces:
            self._pieces[rank, key] = pieces(self.ranks[rank][key])
        return self._pieces[rank, key]

    @cached_property
    def keys(self) -> Sequence[Mapping[str, Sequence[str]]]:
        """For each rank: plain name -> the keys of this rank's parts."""
        found: list[dict[str, list[str]]] = [{} for _ in self.ranks]
        for keys, parts in zip(found, self.ranks, strict=True):
            for key, part in parts.items():
                keys.setdefault(part.name, []).append(key)
        return found

    def __repr__(self):
        lines = [f"{len(self.shapes)} tensors on {len(self.ranks)} ranks"]
        for name, regions in self.regions.items():
            for region in regions:
                rank, key = next(iter(region.keys.items()))
                lines.append(f"  {self.ranks[rank][key]}")
            if not regions:
                lines.append(f"  {name} {self.shapes[name]} is empty")
        return "\n".join(lines)


def decoded(fields: dict) -> Part:
    """Rebuild a part from its JSON form."""
    cuts = [
        Cut(dim=cut["dim"], axes=cut["axes"], ranges=[tuple(r) for r in cut["ranges"]])
        for cut in fields["cuts"]
    ]
    return Part(**{**fields, "cuts": cuts})


def check(ranks: Ranks, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[Region]]:
    """Check that the parts fit together.

    Returns:
        plain name -> its regions, in the same order on every rank.

    Raises:
        ValueError: two ranks give different shapes for one tensor; a number is in no part, or in
            two parts that differ; a part's holders are not the ranks that hold its numbers; the
            ranks do not agree on a pending sum.
    """
    found: dict[str, dict[tuple[Box, ...], dict[int, str]]] = {name: {} for name in shapes}
    for rank, parts in enumerate(ranks):
        for key, part in parts.items():
            if part.shape != shapes[part.name]:
                raise ValueError(
                    f"{part.name} has shape {part.shape} on rank {rank}, but "
                    f"{shapes[part.name]} on another rank"
                )
            if rank not in part.holders:
                raise ValueError(f"rank {rank} has {part}, but is not among its holders")
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
    """Check that each number is in exactly one region."""
    boxes = sorted(box for region in regions for box in region)
    for i, box in enumerate(boxes):
        for other in boxes[i + 1 :]:
            if box and other[0][0] >= box[0][1]:
                break  # boxes are sorted by their start: no later box overlaps either
            if (both := common(box, other)) is not None:
                raise ValueError(f"{name} {shape}: {both} is in two parts that differ")
    held = sum(map(volume, boxes))
    if held != math.prod(shape):
        raise ValueError(f"{name} {shape}: the ranks hold {held} of its {math.prod(shape)} numbers")


def check_holders(same: Mapping[int, Part]):
    """Check that a part names as its holders exactly the ranks that hold it."""
    for rank, part in same.items():
        if part.holders != tuple(same):
            raise ValueError(f"rank {rank} has {part}, but ranks {tuple(same)} hold it")


def check_pending(same: Mapping[int, Part]):
    """Check that the members of a group sum the same numbers, at the same turn."""
    for rank, part in same.items():
        for turn, group in enumerate(part.pending):
            for member in group:
                theirs = same[member]
                if theirs.pending[turn : turn + 1] != (group,):
                    raise ValueError(
                        f"ranks {rank} and {member} name different pending sums: rank {rank} has "
                        f"{part}; rank {member} has {theirs}"
                    )
                if (theirs.cuts, theirs.flat) != (part.cuts, part.flat):
                    raise ValueError(
                        f"{part.name}: ranks {rank} and {member} store the same numbers in "
                        f"different orders, so they cannot be summed"
                    )
    counted = {rank: summed(rank, same) for rank in same}
    for rank, part in same.items():
        ranks = set(counted[rank])
        if len(ranks) != len(counted[rank]):
            raise ValueError(f"the sums of {part} count a rank twice: {counted[rank]}")
        for other in ranks:
            if set(counted[other]) != ranks:
                raise ValueError(f"the sums of {part} include other ranks on rank {other}")


def summed(rank: int, same: Mapping[int, Part]) -> list[int]:
    """The ranks whose gradients this rank's total includes, after all sums."""
    counted = [rank]  # from the last sum back to the first
    for turn in reversed(range(len(same[rank].pending))):
        counted = [other for r in counted for other in same[r].pending[turn]]
    return counted
