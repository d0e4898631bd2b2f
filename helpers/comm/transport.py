"""Send a strategy's buffers: start a collective now, wait for it later.

Strategies never spell `torch.distributed` themselves. They start a collective on a transport, go on
computing, and wait for the `Work` that the transport returned.

    GroupTransport     gloo or NCCL
    SharedTransport    memory that the ranks of one machine share
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from helpers.comm.messages import in_a_row, written_in_a_row
from helpers.comm.shared_collectives import SharedMemory

# PyTorch 2.13 renames these two, and warns about the old names.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
COALESCE = 16 * 2**20  # bytes of small tensors that travel together


class Work(Protocol):
    """A collective that is running."""

    def wait(self):
        """Return when the buffer has the result (on CUDA: when later kernels will see it)."""


class GroupTransport:
    """The collectives of a process group.

    Attributes:
        rank, size: this rank's place in the group, and the number of its ranks.
        lasting: whether the memory of `empty` lasts until `close`.
    """

    lasting = False

    def __init__(self, group: dist.ProcessGroup | None = None):
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise ValueError(f"rank {dist.get_rank()} is not in this group")

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a buffer that suits this transport: (numel,), with arbitrary content."""
        return torch.empty(numel, dtype=dtype, device=device)

    def all_reduce(self, buffer: torch.Tensor) -> Work:
        """Start the sum over the ranks, in place."""
        return dist.all_reduce(buffer, group=self.group, async_op=True)

    def maximum(self, buffer: torch.Tensor) -> Work:
        """Start to take the largest number of all ranks, in place."""
        return dist.all_reduce(buffer, ReduceOp.MAX, group=self.group, async_op=True)

    def all_gather(self, every: torch.Tensor, own: torch.Tensor) -> Work:
        """Start to copy each rank's `own`, (…), into `every`, (N, …). Both are contiguous."""
        rows = every.view(-1), own.view(-1)
        return all_gather_single(*rows, group=self.group, async_op=True)

    def reduce_scatter(self, own: torch.Tensor, every: torch.Tensor) -> Work:
        """Start to sum `every`, (N, …), over the ranks; rank r gets row r in `own`, (…).

        gloo's own reduce-scatter sends the bytes of an all-reduce. An all-to-all and a sum here
        send half of them.
        """
        if dist.get_backend(self.group) != "gloo":
            rows = own.view(-1), every.view(-1)
            return reduce_scatter_single(*rows, group=self.group, async_op=True)
        parts = torch.empty_like(every)
        work = dist.all_to_all_single(parts, every, group=self.group, async_op=True)
        return Summed(work, parts, own)

    def broadcast(self, tensor: torch.Tensor, source: int = 0):
        """Copy the tensor of the group's rank `source` to all ranks, in place."""
        with written_in_a_row(tensor) as row:
            dist.broadcast(row, dist.get_global_rank(self.group, source), group=self.group)

    def close(self):
        """Free the memory of `empty`."""


class SharedTransport(GroupTransport):
    """All-reduces, gathers and reduce-scatters through shared memory, in a thread of their own.

    Buffers from `empty` are in shared memory, where the other ranks read them. Other buffers are
    copied there. The other calls use the group.

    Raises:
        OSError, ValueError: as SharedMemory: not Linux, not one machine, not the CPU.
    """

    lasting = True

    def __init__(self, group: dist.ProcessGroup | None = None):
        super().__init__(group)
        self.shared = SharedMemory(self.group)
        self.thread = ThreadPoolExecutor(
            1, "collectives"
        )  # one thread: calls must keep their order

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return self.thread.submit(self.shared.empty, numel, dtype).result()  # keeps the order

    def all_reduce(self, buffer: torch.Tensor) -> Work:
        return Answer(self.thread.submit(self.shared.all_reduce, buffer))

    def all_gather(self, every: torch.Tensor, own: torch.Tensor) -> Work:
        return Answer(self.thread.submit(self.shared.all_gather, every, own))

    def reduce_scatter(self, own: torch.Tensor, every: torch.Tensor) -> Work:
        return Answer(self.thread.submit(self.shared.reduce_scatter, own, every))

    def close(self):
        self.thread.shutdown()
        self.shared.close()


class Answer:
    """The Work of a call in a thread."""

    def __init__(self, future: Future):
        self.future = future

    def wait(self):
        self.future.result()


class Summed:
    """The Work of an all-to-all whose parts, (N, …), are summed on arrival."""

    def __init__(self, work: Work, parts: torch.Tensor, own: torch.Tensor):
        self.work, self.parts, self.own = work, parts, own

    def wait(self):
        self.work.wait()
        torch.sum(self.parts, 0, out=self.own)


def replicate(tensors: Iterable[torch.Tensor], transport: GroupTransport, source: int = 0):
    """Copy the tensors of the group's rank `source` to every rank, in place.

    Small tensors travel together, because each message costs its latency.

    Args:
        tensors: the same shapes and dtypes in the same order on every rank.
    """
    for together in coalesced(tensors):
        if len(together) == 1:
            transport.broadcast(together[0].detach(), source)
            continue
        row = torch.cat([in_a_row(tensor) for tensor in together])
        transport.broadcast(row, source)
        for tensor, part in zip(together, row.split([t.numel() for t in together]), strict=True):
            tensor.detach().copy_(part.view(tensor.shape))


def coalesced(tensors: Iterable[torch.Tensor], most: int = COALESCE) -> list[list[torch.Tensor]]:
    """Group neighbours of one dtype and device into at most `most` bytes (or one tensor)."""
    groups: list[list[torch.Tensor]] = []
    size = 0
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        same = groups and kind == (groups[-1][0].dtype, groups[-1][0].device)
        if not same or size + tensor.nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.nbytes
    return groups
