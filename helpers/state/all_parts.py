"""The parts of every rank: which rank holds which numbers of each plain tensor."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from types import MappingProxyType

import torch.distributed as dist

from helpers.state.check import Ranks, Region, check
from helpers.state.facts import exchange
from helpers.state.part import Cut, Part
from helpers.state.pieces import Piece, pieces


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
