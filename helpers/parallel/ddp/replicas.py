"""What every kind of data parallel shares: the same start on all ranks, and `no_sync`."""

from collections.abc import Iterable
from contextlib import contextmanager

import torch

from helpers.comm.transport import GroupTransport, replicate


class UnusedParameters(RuntimeError):
    """A backward left parameters without a gradient, on this rank."""


class Replica(torch.nn.Module):
    """A module of which each rank has a copy, begun from rank 0's parameters and buffers.

    Call it in place of the module; call `synchronize` between the backward and the optimizer's
    step. Then each gradient is the mean over the ranks (with `average=False` the sum), the same
    bits everywhere.

    Args:
        module: the same on all ranks, but for its numbers.
        transport: what the buffers travel with; by default the world's process group.
        average: whether to divide by the number of ranks.

    Attributes:
        syncing: False inside of `no_sync`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        transport: GroupTransport | None = None,
        *,
        average: bool = True,
    ):
        super().__init__()
        self.module = module
        self.transport = transport or GroupTransport()
        self.average = average
        self.syncing = True
        replicate([*module.parameters(), *module.buffers()], self.transport)

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that get gradients, by name: a tied one once, frozen ones not at all."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def synchronize(self):
        """Reduce the gradients over the ranks. Inside of `no_sync` it does nothing."""
        raise NotImplementedError

    @contextmanager
    def no_sync(self):
        """Backwards in here add to this rank's own gradients: all micro-batches but the last."""
        before, self.syncing = self.syncing, False
        try:
            yield
        finally:
            self.syncing = before

    def refuse_unused(self, names: Iterable[str]):
        """The other ranks would wait for these gradients, so it is an error rather than a hang.

        Raises:
            UnusedParameters: there are such names.
        """
        if names := list(names):
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if names[8:] else "")
            raise UnusedParameters(
                f"no gradient on rank {self.transport.rank} for {shown}. "
                "If the loss leaves them out on purpose: DDP(…, find_unused_parameters=True), "
                "or requires_grad_(False) before DDP is made."
            )
