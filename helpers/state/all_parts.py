"""The parts of every rank: who holds what of each plain tensor, checked to be all of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from types import MappingProxyType

import torch.distributed as dist

from helpers.state.check import check
from helpers.state.facts import exchange
from helpers.state.part import Cut, Part
from helpers.state.pieces import Piece, pieces


@dataclass(frozen=True, kw_only=True)
class Region:
    """Numbers of one plain tensor that the same ranks hold. Regions of a tensor do not overlap.

    Attributes:
        name: of the plain tensor.
        keys: rank -> its key of the part that holds the region. Ranks in order.
    """

    name: str
    keys: Mapping[int, str]


class AllParts:
    """The parts of every rank.

    Args:
        ranks: for each rank of the world its parts by key. A key is a rank's own name of a tensor;
            a rank may hold a plain tensor in several parts, under several keys. A rank may hold
            nothing: {}.

    Attributes:
        ranks: as given.
        shapes: plain name -> plain shape, in an order that is the same on every rank.

    Raises:
        ValueError: what `check` finds.
    """

    def __init__(self, ranks: Iterable[Mapping[str, Part]]):
        self.ranks: Sequence[Mapping[str, Part]] = tuple(
            MappingProxyType(dict(parts)) for parts in ranks
        )
        self.shapes = {p.name: p.shape for parts in self.ranks for p in parts.values()}
        check(self.ranks, self.shapes)

    @classmethod
    def exchanged(
        cls, own: Mapping[str, Part], group: dist.ProcessGroup | None = None
    ) -> "AllParts":
        """Each rank of the world tells its own parts. Every rank calls it."""
        told = exchange([[key, asdict(part)] for key, part in own.items()], group)
        return cls([{key: decoded(fields) for key, fields in parts} for parts in told])

    def completed(self) -> "AllParts":
        """The same when no sum is pending any more."""
        return AllParts(
            {key: part.completed() for key, part in parts.items()} for parts in self.ranks
        )

    def named(self, names: Iterable[str]) -> "AllParts":
        """Some of the plain tensors only."""
        names = set(names)
        return AllParts(
            {key: part for key, part in parts.items() if part.name in names}
            for parts in self.ranks
        )

    def whole(self) -> "AllParts":
        """The layout in which every rank holds every tensor whole, by its plain name."""
        everyone = tuple(range(len(self.ranks)))
        plain = {
            name: Part(name=name, shape=shape, holders=everyone)
            for name, shape in self.shapes.items()
        }
        return AllParts([plain] * len(self.ranks))

    @cached_property
    def regions(self) -> Mapping[str, Sequence[Region]]:
        """plain name -> its regions, in an order that is the same on every rank. Parts that hold
        nothing are left out."""
        found: dict[str, dict[tuple, dict[int, str]]] = {name: {} for name in self.shapes}
        for rank, parts in enumerate(self.ranks):
            for key, part in parts.items():
                if part.numel:
                    boxes = tuple(sorted(piece.box for piece in pieces(part)))
                    found[part.name].setdefault(boxes, {})[rank] = key
        return {
            name: [Region(name=name, keys=keys) for _, keys in sorted(regions.items())]
            for name, regions in found.items()
        }

    def pieces(self, rank: int, key: str) -> list[Piece]:
        """The pieces of one part."""
        return pieces(self.ranks[rank][key])

    def __repr__(self):
        lines = [f"{len(self.shapes)} tensors on {len(self.ranks)} ranks"]
        for name, regions in self.regions.items():
            for region in regions:
                rank, key = next(iter(region.keys.items()))
                lines.append(f"  {self.ranks[rank][key]}")
            if not regions:
                lines.append(f"  {name} {self.shapes[name]}: empty")
        return "\n".join(lines)


def decoded(fields: dict) -> Part:
    """A part from what JSON made of it."""
    cuts = [
        Cut(dim=cut["dim"], axes=cut["axes"], ranges=[tuple(r) for r in cut["ranges"]])
        for cut in fields["cuts"]
    ]
    return Part(**{**fields, "cuts": cuts})
