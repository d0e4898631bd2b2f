"""Messages from one rank to another that run while the ranks compute.

A **posted receive** names its buffer before the message is needed. A **buffered send** returns at
once, and its tensor is kept until the message has left. With both, no rank waits for a rank that
waits for it.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from helpers.comm.mesh import Mesh, on_gloo
from helpers.comm.messages import Peers


class PointToPoint(Peers):
    """Sends and receives within a group. Ranks count within the group, from 0.

    Messages from one rank to another arrive in the order of their sends. So post the receives in
    that order. A message without numbers is not sent; both sides know its size.

    On gloo, messages between two ranks never wait for messages to others. NCCL puts all single
    messages of a group into one queue, together with the group's collectives. A receive that is
    posted early then holds up the sends after it. So there each channel, from one rank to another,
    needs a group of its own: see `between_neighbours`.

    Args:
        group: None for the world.
        channels: {(from, to): a group of these two ranks}; other messages use `group`.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, channels: Mapping | None = None):
        super().__init__(group)
        self.channels = channels or {}
        self.leaving: list[tuple[dist.Work, torch.Tensor]] = []

    def send(self, tensor: torch.Tensor, to: int):
        """Start to send a contiguous tensor. Do not change it before `finish`."""
        self.leaving = [(work, kept) for work, kept in self.leaving if not work.is_completed()]
        if tensor.numel():
            group = self.channels.get((self.rank, to), self.group)
            target = dist.get_global_rank(self.group, to)
            self.leaving.append((dist.isend(tensor, target, group=group), tensor))

    def receive(self, buffer: torch.Tensor, source: int) -> dist.Work | None:
        """Post a receive into a contiguous buffer; wait for the result before you read it."""
        if not buffer.numel():
            return None
        group = self.channels.get((source, self.rank), self.group)
        return dist.irecv(buffer, dist.get_global_rank(self.group, source), group=group)

    def finish(self):
        """Wait until every message has left."""
        for work, _ in self.leaving:
            work.wait()
        self.leaving = []


def between_neighbours(mesh: Mesh, axis: str) -> PointToPoint:
    """Make the messages between neighbours on the ring of an axis. Every rank of the mesh calls it.

    Each channel gets a group of its own, unless gloo moves the messages. Its first message is sent
    here: NCCL connects two ranks in their first message, and the call blocks on both sides.
    """
    group, channels, device = mesh.group(axis), {}, mesh.device_mesh.device_type
    if on_gloo(group, device):
        return PointToPoint(group)
    for ranks in mesh.layout.groups(axis):
        for source, to in neighbours(len(ranks)):
            pair = dist.new_group(sorted((ranks[source], ranks[to])))
            if mesh.rank in (ranks[source], ranks[to]):
                channels[source, to] = pair
    link, first = PointToPoint(group, channels), torch.zeros(1, device=device)
    for source, to in channels:
        if link.rank == source:
            link.send(first, to)
            link.finish()
        else:
            link.receive(first, source).wait()
    return link


def neighbours(size: int) -> list[tuple[int, int]]:
    """Return the channels (from, to) between neighbours on a ring, in both directions."""
    steps = [(rank, (rank + 1) % size) for rank in range(size)]
    return sorted({*steps, *((to, rank) for rank, to in steps)}) if size > 1 else []


class Buffers:
    """Buffers of one size that are used again: after the first step no new memory is needed.

    Args:
        numel: the largest number of elements of a message.

    Attributes:
        made: how many buffers there are.
    """

    def __init__(self, numel: int, dtype: torch.dtype, device: torch.device | str):
        self.numel, self.dtype, self.device = numel, dtype, device
        self.free: list[torch.Tensor] = []
        self.made = 0

    def take(self, shape: Sequence[int]) -> torch.Tensor:
        """A contiguous tensor of this shape, with arbitrary content. It requires no gradient."""
        numel = torch.Size(shape).numel()
        if not self.free:
            self.made += 1
            self.free.append(torch.empty(self.numel, dtype=self.dtype, device=self.device))
        return self.free.pop()[:numel].view(torch.Size(shape))

    def give_back(self, tensor: torch.Tensor):
        """Return what `take` gave; its content may change from now on."""
        row = tensor.detach().view(-1)
        self.free.append(row.as_strided((self.numel,), (1,), 0))
