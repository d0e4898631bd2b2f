"""The memory of the gradients in a row: kept for the whole step, or sent and freed in the backward.

P is the number of the row's parameters, padding included; N is the number of ranks.
"""

from collections.abc import Mapping

import torch

from helpers.comm.transport import GroupTransport, Work
from helpers.parallel.zero.row import Row, view


class Kept:
    """Add all micro-batches' gradients in a row on this rank, and reduce-scatter the row once.

    The sum over the ranks is written to this rank's shard of the same row.

    Args:
        row, parameters: the row's parameters by name.

    Attributes:
        missing: names of the gradients that the last micro-batch has not computed yet.
        sent: whether the reduce-scatter has started.
        buffers: the memory of the gradients on this rank.
    """

    def __init__(
        self,
        row: Row,
        parameters: Mapping[str, torch.nn.Parameter],
        transport: GroupTransport,
    ):
        self.row, self.parameters, self.transport = row, dict(parameters), transport
        first = next(iter(parameters.values()))
        self.whole = transport.empty(row.size, first.dtype, first.device).zero_()
        self.shard = self.whole.view(transport.size, -1)[transport.rank]
        self.views = {n: view(self.whole, row, n, p.shape) for n, p in parameters.items()}
        self.work: Work | None = None
        self.begin()

    @property
    def buffers(self) -> list[torch.Tensor]:
        return [self.whole]

    def begin(self):
        """Prepare for a step."""
        if self.work is not None:  # of a step that failed
            self.finish()
        self.missing, self.sent = set(self.parameters), False

    def take(self, name: str):
        """Copy a gradient to the row. Autograd adds later micro-batches' gradients there."""
        parameter, place = self.parameters[name], self.views[name]
        if parameter.grad is not place:
            place.copy_(parameter.grad)
            parameter.grad = place

    def send(self):
        """Start the reduce-scatter."""
        shards = self.whole.view(self.transport.size, -1)
        self.work, self.sent = self.transport.reduce_scatter(self.shard, shards), True

    def finish(self):
        """Wait for the reduce-scatter."""
        self.work.wait()
        self.work = None

    def result(self) -> torch.Tensor:
        """Return this rank's shard of the summed gradients, (P/N,)."""
        return self.shard


class Pool:
    """Lend buffers. Ordinary memory is freed after use; a transport's own memory is lent again.

    Args:
        largest: numbers in the largest buffer. A transport that cannot free memory gets buffers of
            this size, so that few of them fit all rows.
    """

    def __init__(self, transport: GroupTransport, largest: int):
        self.transport, self.largest = transport, largest
        self.free: dict[torch.dtype, list[torch.Tensor]] = {}
        self.lent: dict[int, torch.Tensor] = {}  # address -> the whole buffer

    def take(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Lend a buffer: (numel,), with arbitrary content."""
        if not self.transport.lasting:
            return self.transport.empty(numel, dtype, device)
        free = self.free.setdefault(dtype, [])
        buffer = free.pop() if free else self.transport.empty(self.largest, dtype, device)
        self.lent[buffer.data_ptr()] = buffer
        return buffer[:numel]

    def give(self, buffer: torch.Tensor):
        """Take a buffer back."""
        if self.transport.lasting:
            self.free[buffer.dtype].append(self.lent.pop(buffer.data_ptr()))

    @property
    def buffers(self) -> list[torch.Tensor]:
        """All memory that lasts."""
        return [*(b for same in self.free.values() for b in same), *self.lent.values()]


class Freed:
    """Copy each micro-batch's gradients to a row, reduce-scatter the row, and free it.

    This rank's shards of the sums are added. The first one has the gradients' dtype; from the
    second on, they are added in `wide`.

    Args:
        row, parameters: as for Kept; the parameters may be freed.
        pool: lends the memory of the row.
        wide: the dtype in which several micro-batches are added.

    Attributes:
        buffers: as for Kept.
        sent: how many reduce-scatters have started in this step.
    """

    def __init__(
        self,
        row: Row,
        parameters: Mapping[str, torch.nn.Parameter],
        transport: GroupTransport,
        pool: Pool,
        wide: torch.dtype,
    ):
        self.row, self.parameters, self.transport = row, dict(parameters), transport
        self.pool, self.wide = pool, wide
        self.whole: torch.Tensor | None = None
        self.shard: torch.Tensor | None = None
        self.arriving: torch.Tensor | None = None  # the result of a running reduce-scatter
        self.work: Work | None = None
        self.begin()

    @property
    def buffers(self) -> list[torch.Tensor]:
        return [b for b in (self.whole, self.arriving, self.shard) if b is not None]

    def begin(self):
        """Prepare for a step."""
        if self.work is not None:  # of a step that failed
            self.finish()
        if self.whole is not None:
            self.pool.give(self.whole)
            self.whole = None
        self.shard = None
        self.taken: set[str] = set()
        self.sent = 0

    def take(self, name: str):
        """Move a gradient to the row."""
        parameter = self.parameters[name]
        if self.whole is None:
            gradient = parameter.grad
            self.whole = self.pool.take(self.row.size, gradient.dtype, gradient.device)
        place = view(self.whole, self.row, name, parameter.shape)
        if name in self.taken:
            place.add_(parameter.grad)
        else:
            place.copy_(parameter.grad)
        self.taken.add(name)
        parameter.grad = None

    def send(self):
        """Start the reduce-scatter. A gradient that this micro-batch did not have counts as zero.

        The padding's sum has no meaning; no tensor includes it.
        """
        for name in self.parameters.keys() - self.taken:
            self.whole[slice(*self.row.places[name])].zero_()
        self.arriving = self.whole.new_empty(self.row.shard)
        shards = self.whole.view(self.transport.size, -1)
        self.work = self.transport.reduce_scatter(self.arriving, shards)
        self.taken = set()
        self.sent += 1

    def finish(self):
        """Wait for the reduce-scatter, free the row, and add the result to the shard."""
        self.work.wait()
        self.pool.give(self.whole)
        if self.shard is None:
            self.shard = self.arriving
        else:
            self.shard = self.shard.to(self.wide).add_(self.arriving)
        self.work = self.whole = self.arriving = None

    def result(self) -> torch.Tensor:
        """Hand over this rank's shard of the summed gradients, (P/N,)."""
        shard, self.shard = self.shard, None
        return shard
