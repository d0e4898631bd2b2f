"""Rows of whole tensors: each rank's section of the row has tensors that no limit cuts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from helpers.comm.transport import GroupTransport
from helpers.parallel.zero.row import Row, Whole
from helpers.plans.muon import section, share_out
from helpers.state.part import Range


@dataclass(frozen=True)
class Sections(Row):
    """A row with a section for each rank. A section has whole tensors, and padding at its end.

    Attributes:
        rank_of: name -> the rank whose section has the tensor.
    """

    rank_of: Mapping[str, int]

    @cached_property
    def shard(self) -> int:
        return section({name: (size,) for name, size in self.sizes.items()}, self.rank_of)

    @cached_property
    def places(self) -> dict[str, Range]:
        found, stops = {}, [rank * self.shard for rank in range(self.ranks)]
        for name, size in self.sizes.items():
            rank = self.rank_of[name]
            found[name] = stops[rank], stops[rank] + size
            stops[rank] += size
        return found


class Undivided(Whole):
    """As Whole, in `Sections`.

    Args:
        loads: of the ranks, as for `share_out`.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        transport: GroupTransport,
        loads: list[float],
    ):
        shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        sizes = {name: p.numel() for name, p in parameters.items()}
        shares = share_out(shapes, transport.size, loads)
        super().__init__(parameters, transport, Sections(sizes, transport.size, shares))
