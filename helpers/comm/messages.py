"""The parts of a collective: a buffer as one row, its chunks, and messages within a group."""

from contextlib import contextmanager

import torch
import torch.distributed as dist


def split(numel: int, parts: int) -> list[int]:
    """Return the sizes of `parts` chunks of `numel` numbers, as equal as possible.

    The sizes add up to `numel`. The first `numel % parts` chunks are larger by 1. With more parts
    than numbers, the last chunks are empty.
    """
    size, rest = divmod(numel, parts)
    return [size + (part < rest) for part in range(parts)]


def in_a_row(tensor: torch.Tensor) -> torch.Tensor:
    """Return all numbers as one contiguous row to read: (numel,). A view if memory allows it."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


@contextmanager
def written_in_a_row(tensor: torch.Tensor):
    """Yield the tensor as one contiguous row to write: (numel,).

    At the end of the block the tensor has the numbers of the row, whatever its strides. A tensor
    that requires grad is written in place, as under `no_grad`.
    """
    row = in_a_row(tensor)
    yield row
    if row.data_ptr() != tensor.data_ptr():  # the row is a copy
        tensor.detach().copy_(row.view(tensor.shape))


class Peers:
    """A group, from the view of one of its ranks. Ranks count within the group, from 0.

    Attributes:
        rank, size: this rank's place in the group, and the group's size.
        left, right: the neighbours on the ring, where rank 0 follows the last rank.

    Raises:
        ValueError: this rank is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        self.group = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self.group)
        if self.rank < 0:
            raise ValueError(
                f"rank {dist.get_rank()} is not in this group: call this only on its ranks"
            )
        self.size = dist.get_world_size(self.group)
        self.left, self.right = (self.rank - 1) % self.size, (self.rank + 1) % self.size

    def exchange(
        self,
        send: torch.Tensor | None = None,
        to: int = 0,
        receive: torch.Tensor | None = None,
        source: int = 0,
    ):
        """Send one buffer and receive another at the same time; either may be left out.

        All ranks of a ring send at once. If each rank waited for its `send` first, all could wait
        for a `recv` that no rank has started. So both messages are started before the rank waits
        for either. They form one batch, because NCCL would otherwise carry them out in order, with
        the same deadlock.

        An empty buffer is not sent. Both sides must know its size.
        """
        for work in self.begin(send, to, receive, source):
            work.wait()

    def begin(
        self,
        send: torch.Tensor | None = None,
        to: int = 0,
        receive: torch.Tensor | None = None,
        source: int = 0,
    ) -> list[dist.Work]:
        """Start what `exchange` does, and return the works to wait for."""
        messages = []
        if send is not None and send.numel():
            messages.append(self.message(dist.isend, send, to))
        if receive is not None and receive.numel():
            messages.append(self.message(dist.irecv, receive, source))
        return dist.batch_isend_irecv(messages) if messages else []

    def message(self, call, buffer: torch.Tensor, peer: int) -> dist.P2POp:
        # isend and irecv need ranks of the world, for any group.
        return dist.P2POp(call, buffer, dist.get_global_rank(self.group, peer), self.group)
