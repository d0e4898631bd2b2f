"""What a collective is made of: a buffer in a row, its chunks, and messages within a group."""

from contextlib import contextmanager

import torch
import torch.distributed as dist


def split(numel: int, parts: int) -> list[int]:
    """The sizes of `parts` chunks of `numel` numbers, as equal as can be.

    They add up to `numel`. The first `numel % parts` are larger by 1; with more parts than numbers,
    the last are 0.
    """
    size, rest = divmod(numel, parts)
    return [size + (part < rest) for part in range(parts)]


def in_a_row(tensor: torch.Tensor) -> torch.Tensor:
    """All its numbers as one contiguous row, to read: (numel,). A view where memory allows it."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


@contextmanager
def written_in_a_row(tensor: torch.Tensor):
    """The same, to write: what is in the row at the end is in `tensor` then, whatever its strides.

    In place: a tensor that requires grad is written to as under `no_grad`.
    """
    row = in_a_row(tensor)
    yield row
    if row.data_ptr() != tensor.data_ptr():  # it is a copy
        tensor.detach().copy_(row.view(tensor.shape))


class Peers:
    """A group, as one of its ranks sees it. Ranks in here count within the group, from 0.

    Attributes:
        rank, size: this rank's place in the group, and how many there are.
        left, right: its neighbours on the ring, where the last is followed by the first.

    Raises:
        ValueError: this rank is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        self.group = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self.group)
        if self.rank < 0:
            raise ValueError(f"rank {dist.get_rank()} is not in this group, and must not call it")
        self.size = dist.get_world_size(self.group)
        self.left, self.right = (self.rank - 1) % self.size, (self.rank + 1) % self.size

    def exchange(
        self,
        send: torch.Tensor | None = None,
        to: int = 0,
        receive: torch.Tensor | None = None,
        source: int = 0,
    ):
        """Send one buffer and receive another, at the same time; either may be left out.

        All ranks of a ring send at once. If each waited for its `send` first, all might wait for
        a `recv` that nobody has come to; so both are started, and only then waited for. The two go
        as one batch because NCCL would otherwise carry them out in order, and wait just so.

        An empty buffer is no message. Both sides must know its size.
        """
        messages = []
        if send is not None and send.numel():
            messages.append(self.message(dist.isend, send, to))
        if receive is not None and receive.numel():
            messages.append(self.message(dist.irecv, receive, source))
        for work in dist.batch_isend_irecv(messages) if messages else ():
            work.wait()

    def message(self, call, buffer: torch.Tensor, peer: int) -> dist.P2POp:
        # isend and irecv take ranks of the world, whatever the group.
        return dist.P2POp(call, buffer, dist.get_global_rank(self.group, peer), self.group)
