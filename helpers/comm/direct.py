"""Gather and reduce-scatter shards by direct messages: gloo's own calls copy more."""

import torch
import torch.distributed as dist

from helpers.comm.transport import GroupTransport, Work


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
        if every[self.rank].data_ptr() != own.data_ptr():
            every[self.rank].copy_(own)
        return Arrivals(self.exchange(lambda other: own, lambda other: every[other]))

    def reduce_scatter(self, own: torch.Tensor, every: torch.Tensor) -> Work:
        if dist.get_backend(self.group) != "gloo":
            return super().reduce_scatter(own, every)
        mine = every[self.rank]
        if self.size == 2 and own.data_ptr() != mine.data_ptr():
            parts = own.view(1, *mine.shape)  # the only part arrives where the sum will be
        else:
            parts = every.new_empty((self.size - 1, *mine.shape))
        row = lambda other: parts[other - (other > self.rank)]  # noqa: E731
        return AddedUp(self.exchange(lambda other: every[other], row), parts, mine, own)

    def exchange(self, sent, received) -> list[Work]:
        """Start to send `sent(rank)` to every other rank, and to receive `received(rank)`."""
        works = []
        for step in range(1, self.size):  # in each step, no two ranks send to the same rank
            to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
            works.append(dist.irecv(received(source), group=self.group, group_src=source))
            works.append(dist.isend(sent(to), group=self.group, group_dst=to))
        return works


class Arrivals:
    """The Work of several messages."""

    def __init__(self, works: list[Work]):
        self.works = works

    def wait(self):
        for work in self.works:
            work.wait()


class AddedUp(Arrivals):
    """The Work of messages with parts, (N-1, …), that are added to this rank's part."""

    def __init__(self, works, parts: torch.Tensor, mine: torch.Tensor, own: torch.Tensor):
        super().__init__(works)
        self.parts, self.mine, self.own = parts, mine, own

    def wait(self):
        super().wait()
        if len(self.parts):
            torch.add(self.mine, self.parts[0] if len(self.parts) == 1 else self.parts.sum(0),
                      out=self.own)  # fmt: skip
        elif self.own.data_ptr() != self.mine.data_ptr():
            self.own.copy_(self.mine)
