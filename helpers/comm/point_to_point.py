"""Messages from one rank to another that run while the ranks compute.

A **posted receive** names its buffer before the message is needed. A **buffered send** returns at
once, and its tensor is kept until the message has left. With both, no rank waits for a rank that
waits for it.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from helpers.comm.mesh import Mesh
from helpers.comm.messages import Peers


class PointToPoint(Peers):
    """Sends and receives within a group. Ranks count within the group, from 0.

    Messages from one rank to another arrive in the order of their sends. So post the receives in
    that order. A message without numbers is not sent; both sides know its size.

    On gloo, messages of both directions between two ranks never wait for each other. NCCL runs the
    messages of a group between two ranks one after another, so there each direction needs a group
    of its own: see `two_way`.

    Args:
        group: None for the world.
        back: a group of the same ranks, for messages to lower ranks; None: the same group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, back=None):
        super().__init__(group)
        self.back = back or self.group
        self.leaving: list[tuple[dist.Work, torch.Tensor]] = []

    def send(self, tensor: torch.Tensor, to: int):
        """Start to send a contiguous tensor. Do not change it before `finish`."""
        self.leaving = [(work, kept) for work, kept in self.leaving if not work.is_completed()]
        if tensor.numel():
            target = dist.get_global_rank(self.group, to)
            group = self.back if to < self.rank else self.group
            self.leaving.append((dist.isend(tensor, target, group=group), tensor))

    def receive(self, buffer: torch.Tensor, source: int) -> dist.Work | None:
        """Post a receive into a contiguous buffer; wait for the result before you read it."""
        if not buffer.numel():
            return None
        group = self.back if self.rank < source else self.group
        return dist.irecv(buffer, dist.get_global_rank(self.group, source), group=group)

    def finish(self):
        """Wait until every message has left."""
        for work, _ in self.leaving:
            work.wait()
        self.leaving = []


def two_way(mesh: Mesh, axis: str, apart: bool | None = None) -> PointToPoint:
    """Make the messages along an axis. Every rank of the mesh calls it.

    Args:
        apart: whether each direction gets a group of its own; None: unless gloo sends.
    """
    group = mesh.group(axis)
    if apart or (apart is None and dist.get_backend(group) != "gloo"):
        back, _ = dist.new_subgroups_by_enumeration(mesh.layout.groups(axis))
        return PointToPoint(group, back)
    return PointToPoint(group)


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
        return self.free.pop()[:numel].view(*shape)

    def give_back(self, tensor: torch.Tensor):
        """Return what `take` gave; its content may change from now on."""
        row = tensor.detach().view(-1)
        self.free.append(row.as_strided((self.numel,), (1,), 0))
