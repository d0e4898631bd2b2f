"""The base of all data parallel replicas: the same start on all ranks, and `no_sync`."""

from collections.abc import Collection, Iterable
from contextlib import contextmanager

import torch

from helpers.comm.transport import GroupTransport, replicate


class UnusedParameters(RuntimeError):
    """Some parameters got no gradient in this rank's backward."""


class Replica(torch.nn.Module):
    """A module with a copy on each rank. All copies start with rank 0's parameters and buffers.

    Call it instead of the module, and call `synchronize` between the backward and the optimizer's
    step. Then each gradient is the mean over the ranks (with `average=False` the sum), with the
    same bits on all ranks.

    Buffers that the forward changes (BatchNorm's running mean) differ between ranks, because each
    rank has its own data. `broadcast_buffers` copies rank 0's buffers before each forward.

    Args:
        module: the same on all ranks, except for its values.
        transport: sends the messages; by default through the world's process group.
        average: whether to divide by the number of ranks.
        broadcast_buffers: whether to copy rank 0's buffers before each training forward outside
            `no_sync`. PyTorch's DDP does so by default. It costs a message per forward, if the
            module has buffers.
        same: whether all ranks have the same values already, so that none are sent.
        only: the names of the parameters that these ranks replicate; None for all.

    Attributes:
        syncing: False inside `no_sync`.

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
        only: Collection[str] | None = None,
    ):
        super().__init__()
        self.module, self.only = module, only
        if not self.trained():
            raise ValueError(
                "nothing to train: no parameter of the module requires a gradient. "
                "Use the module without DDP, or unfreeze some parameters."
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
        """The parameters that get gradients, by name. A tied parameter counts once."""
        named = self.module.named_parameters()
        every = {name: p for name, p in named if p.requires_grad}
        return every if self.only is None else {n: p for n, p in every.items() if n in self.only}

    def take_hold(self):
        """Raise if another DDP has the module, before any message."""

    def gradient(self, name: str, last: bool):
        """Report that a parameter has a gradient; `last`: it is complete for this step."""

    def synchronize(self):
        """Reduce the gradients over the ranks. Inside `no_sync` it does nothing."""
        raise NotImplementedError

    @contextmanager
    def no_sync(self):
        """Add gradients on this rank without sending: for all micro-batches except the last."""
        before, self.syncing = self.syncing, False
        try:
            yield
        finally:
            self.syncing = before

    def close(self):
        """Release the module, so that it can be wrapped again."""

    def refuse_unused(self, names: Iterable[str]):
        """See the function of this name."""
        advice = (
            "use DDP(…, find_unused_parameters=True), or call requires_grad_(False) on them "
            "before you make DDP."
        )
        refuse_unused(names, self.transport.rank, advice)


def refuse_unused(names: Iterable[str], rank: int, advice: str):
    """Raise an error for unused parameters, because the other ranks would wait for them.

    Raises:
        UnusedParameters: `names` is not empty.
    """
    if names := list(names):
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if names[8:] else "")
        raise UnusedParameters(
            f"no gradient on rank {rank} for {shown}. If the loss leaves them out on purpose, "
            f"{advice}"
        )


def refuse_odd(name: str, gradient: torch.Tensor):
    """Raise an error for a gradient that a bucket cannot contain.

    Raises:
        NotImplementedError: the gradient is sparse, or has a graph.
    """
    if gradient.layout is not torch.strided:
        raise NotImplementedError(
            f"the gradient of {name} is sparse, but data parallel here reduces only dense "
            "gradients: make the embedding with sparse=False"
        )
    if gradient.requires_grad:
        raise NotImplementedError(
            f"the gradient of {name} has a graph, from backward(create_graph=True), which the "
            "all-reduce would lose: use torch.autograd.grad for the inner gradient"
        )
