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

    Buffers that the forward changes (BatchNorm's running mean) drift apart from rank to rank, since
    each rank sees its own data; `broadcast_buffers` makes them rank 0's before each forward.

    Args:
        module: the same on all ranks, but for its numbers.
        transport: what the buffers travel with; by default the world's process group.
        average: whether to divide by the number of ranks.
        broadcast_buffers: in training, outside of `no_sync`. PyTorch's DDP does it by default; it
            costs a message for each forward of a module that has buffers.
        same: whether all ranks hold the same numbers already, so that none need be sent.

    Attributes:
        syncing: False inside of `no_sync`.

    Raises:
        ValueError: no parameter of the module requires a gradient.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        transport: GroupTransport | None = None,
        *,
        average: bool = True,
        broadcast_buffers: bool = False,
        same: bool = False,
    ):
        super().__init__()
        self.module = module
        if not self.trained():
            raise ValueError(
                "nothing to train: no parameter of the module requires a gradient. "
                "Use the module without DDP, or unfreeze a part of it."
            )
        self.transport = transport or GroupTransport()
        self.average = average
        self.broadcast_buffers = broadcast_buffers
        self.syncing = True
        self.take_hold()
        if not same:
            replicate([*module.parameters(), *module.buffers()], self.transport)

    def forward(self, *inputs, **kwargs):
        if self.broadcast_buffers and self.syncing and self.training:
            replicate(self.module.buffers(), self.transport)
        return self.module(*inputs, **kwargs)

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that get gradients, by name: a tied one once, frozen ones not at all."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def take_hold(self):
        """Refuse a module that is taken, before anything is sent."""

    def gradient(self, name: str, last: bool):
        """A gradient came to its `.grad`; `last`: this step's backwards add nothing to it."""

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

    def close(self):
        """Let go of the module, so that it can be wrapped again."""

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


def refuse_odd(name: str, gradient: torch.Tensor):
    """A bucket takes plain numbers only.

    Raises:
        NotImplementedError: a sparse gradient, or one that has a graph.
    """
    if gradient.layout is not torch.strided:
        raise NotImplementedError(
            f"the gradient of {name} is sparse, and data parallel here reduces dense ones only: "
            "make the embedding with sparse=False"
        )
    if gradient.requires_grad:
        raise NotImplementedError(
            f"the gradient of {name} has a graph of its own, from backward(create_graph=True): "
            "it would be lost in the all-reduce. Use torch.autograd.grad for the inner gradient"
        )
