"""Send a strategy's buffers: start a collective now, wait for it later.

Strategies never spell `torch.distributed` themselves. They start a collective on a transport, go on
computing, and wait for the `Work` that the transport returned.

    GroupTransport     gloo or NCCL
    DirectTransport    the same, but on gloo shards go straight to the ranks that need them
    SharedTransport    memory that the ranks of one machine share
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from helpers.comm.messages import Peers, in_a_row, written_in_a_row
from helpers.comm.shared_memory.collectives import SharedMemory

# PyTorch 2.13 renames these two, and warns about the old names.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
COALESCE = 16 * 2**20  # bytes of small tensors that travel together


class Work(Protocol):
    """A collective that is running."""

    def wait(self):
        """Return when the buffer has the result (on CUDA: when later kernels will see it)."""


class GroupTransport(Peers):
    """The collectives of a process group.

    Attributes:
        lasting: whether the memory of `empty` lasts until `close`.
    """

    lasting = False

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
        return Messages([work], partial(torch.sum, parts, 0, out=own))

    def all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        sizes: tuple[list[int] | None, list[int] | None] = (None, None),
    ) -> Work:
        """Start to send row d of `sent`, (N, …), to rank d; row s of `received` is from rank s.

        Args:
            sizes: the numbers from each rank, and to each rank; None for rows of one size.
        """
        rows = received.view(-1), sent.view(-1)
        return dist.all_to_all_single(*rows, *sizes, group=self.group, async_op=True)

    def broadcast(self, tensor: torch.Tensor, source: int = 0):
        """Copy the tensor of the group's rank `source` to all ranks, in place."""
        with written_in_a_row(tensor) as row:
            dist.broadcast(row, dist.get_global_rank(self.group, source), group=self.group)

    def close(self):
        """Free the memory of `empty`."""


class DirectTransport(GroupTransport):
    """On gloo, each rank sends shards directly to the ranks that need them.

    The bytes on the wire are those of a ring: (N-1)/N of the row, S. But nothing is copied on the
    way: a gathered shard arrives in its place. gloo's all-gather receives into a buffer of its own
    first, and its all-to-all has room for the rank's own shard too. Other backends use their own
    calls.

    The ledger counts these messages as "send" and "recv".
    """

    def all_gather(self, every: torch.Tensor, own: torch.Tensor) -> Work:
        if dist.get_backend(self.group) != "gloo":
            return super().all_gather(every, own)
        copy_unless_same(every[self.rank], own)
        return Messages(self.swap(lambda other: own, lambda other: every[other]))

    def reduce_scatter(self, own: torch.Tensor, every: torch.Tensor) -> Work:
        if dist.get_backend(self.group) != "gloo":
            return super().reduce_scatter(own, every)
        mine = every[self.rank]
        in_place = self.size == 2 and own.data_ptr() != mine.data_ptr()
        if in_place:
            parts = own.view(1, *mine.shape)  # the only part arrives where the sum will be
        else:
            parts = every.new_empty((self.size - 1, *mine.shape))

        def add_up():
            if in_place:  # `add(out=own)` would refuse, if strides of a dimension of size 1 differ
                own.add_(mine.view_as(own))
            elif len(parts):
                torch.add(mine, parts.sum(0), out=own)
            else:
                copy_unless_same(own, mine)

        row = lambda other: parts[other - (other > self.rank)]  # noqa: E731
        return Messages(self.swap(lambda other: every[other], row), add_up)

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor, sizes=(None, None)) -> Work:
        if dist.get_backend(self.group) != "gloo" or any(sizes):
            return super().all_to_all(received, sent, sizes)
        copy_unless_same(received[self.rank], sent[self.rank])
        return Messages(self.swap(lambda other: sent[other], lambda other: received[other]))

    def swap(self, sent, received) -> list[Work]:
        """Start to send `sent(rank)` to every other rank, and to receive `received(rank)`."""
        works = []
        for step in range(1, self.size):  # in each step, no two ranks send to the same rank
            to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
            works.append(dist.irecv(received(source), group=self.group, group_src=source))
            works.append(dist.isend(sent(to), group=self.group, group_dst=to))
        return works


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


class Messages:
    """The Work of several messages; when all have arrived, `finish` makes the result of them."""

    def __init__(self, works: list[Work], finish: Callable[[], object] = lambda: None):
        self.works, self.finish = works, finish

    def wait(self):
        while self.works:  # each once: gloo would wait for another message
            self.works[0].wait()
            del self.works[0]
        finish, self.finish = self.finish, lambda: None
        finish()


def copy_unless_same(to: torch.Tensor, source: torch.Tensor):
    """Copy between tensors of one size, unless they share their memory."""
    if to.data_ptr() != source.data_ptr():
        to.copy_(source)


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
