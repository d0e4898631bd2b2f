"""Loads: how many tokens each expert got, how many it dropped, how many experts a batch reads.

L  blocks with experts        E  experts        N  tokens        k  experts of a token
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from helpers.models.experts.layer import Router, Routing
from helpers.models.experts.routing import counts_of


@dataclass(kw_only=True)
class Loads:
    """The routings of a model's forwards, by block.

    Attributes:
        experts: E.
        routings: of each block with experts, in order: the Routing of each forward.
    """

    experts: int
    routings: list[list[Routing]] = field(default_factory=list)

    @property
    def tokens(self) -> torch.Tensor:
        """The tokens that chose each expert: (L, E) int64."""
        every = [[counts_of(r.chosen, self.experts).sum(0) for r in own] for own in self.routings]
        return torch.stack([sum(counts) for counts in every])

    @property
    def dropped(self) -> torch.Tensor:
        """The share of the choices that an expert had no room for, of each block: (L,)."""
        kept = [
            [(r.chosen >= 0 if r.kept is None else r.kept).double().flatten() for r in own]
            for own in self.routings
        ]
        return torch.stack([1 - torch.cat(own).mean() for own in kept])

    def distinct(self, batch: int) -> torch.Tensor:
        """The mean number of experts that a batch of tokens reads, of each block: (L,).

        A batch has one token of each of `batch` sequences, all at the same place, as a step of
        decoding has. Sequences that do not fill a batch are left out.

        Raises:
            ValueError: no forward had so many sequences.
        """
        found = []
        for own in self.routings:
            counts = []
            for routing in own:
                rows = routing.chosen[: len(routing.chosen) // batch * batch]
                read = torch.zeros(*rows.shape[:2], self.experts, dtype=torch.bool)
                read = read.scatter_(-1, rows.cpu(), True).unflatten(0, (-1, batch))
                counts.append(read.any(1).sum(-1).double().flatten())
            if not any(map(len, counts)):
                raise ValueError(f"no forward had {batch} sequences")
            found.append(torch.cat(counts).mean())
        return torch.stack(found)


@contextmanager
def loads_of(model: torch.nn.Module) -> Iterator[Loads]:
    """Record the routings of all forwards inside the `with`.

    Raises:
        ValueError: the model has no experts.
    """
    routers = [module for module in model.modules() if isinstance(module, Router)]
    if not routers:
        raise ValueError("the model has no experts")
    loads, hooks = Loads(experts=routers[0].settings.count), []
    try:
        for router in routers:
            own: list[Routing] = []
            loads.routings.append(own)
            hooks.append(router.register_forward_hook(lambda *call, own=own: own.append(call[-1])))
        yield loads
    finally:
        for hook in hooks:
            hook.remove()
