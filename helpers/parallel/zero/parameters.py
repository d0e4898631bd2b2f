"""The memory of the parameters in a row: whole on every rank, or gathered only when they are used.

P is the number of the row's parameters, padding included; N is the number of ranks.
"""

import math
from collections.abc import Mapping

import torch

from helpers.comm.transport import GroupTransport, Work
from helpers.parallel.zero.row import Row


class Whole:
    """Every rank has all parameters of the row. After an update, all ranks gather the shards.

    Args:
        parameters: by name, all of one dtype and device, with memory of their own.

    Attributes:
        row: where the parameters lie.
        shard: this rank's numbers, (P/N,).
        buffers: the memory of the parameters on this rank.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], transport: GroupTransport):
        self.parameters, self.transport = dict(parameters), transport
        self.row = Row({name: p.numel() for name, p in parameters.items()}, transport.size)
        first = next(iter(parameters.values()))
        self.whole = transport.empty(self.row.size, first.dtype, first.device).zero_()
        self.shard = self.whole.view(transport.size, -1)[transport.rank]
        self.work: Work | None = None
        for name, p in self.parameters.items():
            p.data = view(self.whole, self.row, name, p.shape)

    @property
    def buffers(self) -> list[torch.Tensor]:
        return [self.whole]

    def publish(self):
        """Start to gather the updated shards."""
        self.work = self.transport.all_gather(self.whole.view(self.transport.size, -1), self.shard)

    def wait(self):
        """Wait until the parameters are complete."""
        if self.work is not None:
            self.work.wait()
            self.work = None


class Gathered:
    """A rank has its shard. It gathers the parameters when they are used, then frees them.

    Freed parameters read as NaN, and PyTorch refuses to write to them. Autograd may have saved
    views of them (a linear module saves its transposed weight). So all gathers write to the same
    storage, which is resized to nothing in between.

    Args:
        parameters: by name, all of one dtype and device. They need no memory of their own.
        shapes: of the parameters.

    Attributes:
        row, shard, buffers: as for Whole.
        kept: whether the parameters stay gathered until the step ends.
        state: "freed", "gathering", "ready" or "in use".
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        shapes: Mapping[str, tuple[int, ...]],
        transport: GroupTransport,
        kept: bool = False,
    ):
        self.parameters, self.transport, self.kept = dict(parameters), transport, kept
        self.row = Row({name: math.prod(shapes[name]) for name in parameters}, transport.size)
        first = next(iter(parameters.values()))
        self.shard = transport.empty(self.row.shard, first.dtype, first.device).zero_()
        self.whole = torch.empty(self.row.size, dtype=first.dtype, device=first.device)
        self.nbytes = self.whole.nbytes
        missing = torch.full((), math.nan, dtype=first.dtype, device=first.device)
        self.views = {n: view(self.whole, self.row, n, shapes[n]) for n in parameters}
        self.missing = {n: missing.expand(shapes[n]) for n in parameters}
        self.work: Work | None = None
        self.free()

    @property
    def buffers(self) -> list[torch.Tensor]:
        return [self.shard, self.whole]

    def gather(self):
        """Start to gather the parameters, if they are freed."""
        if self.state == "freed":
            self.whole.untyped_storage().resize_(self.nbytes)
            self.work = self.transport.all_gather(
                self.whole.view(self.transport.size, -1), self.shard
            )
            self.state = "gathering"

    def use(self):
        """Wait until the parameters are gathered."""
        if self.work is not None:
            self.work.wait()
            self.work = None
            for name, p in self.parameters.items():
                p.data = self.views[name]
        self.state = "in use"

    def free(self):
        """Free the gathered parameters."""
        if self.work is not None:
            self.work.wait()
            self.work = None
        self.whole.untyped_storage().resize_(0)
        for name, p in self.parameters.items():
            p.data = self.missing[name]
        self.state = "freed"


def view(whole: torch.Tensor, row: Row, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """View a tensor of the row in its shape."""
    return whole[slice(*row.places[name])].view(shape)
