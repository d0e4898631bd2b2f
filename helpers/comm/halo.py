"""The last tokens of the rank before: what a causal convolution needs on a cut sequence.

B  sequences        t  tokens of this rank's part        E  channels        k  tokens of a halo
"""

import torch
from torch.autograd.function import once_differentiable

from helpers.comm.messages import Peers


def previous_tokens(x: torch.Tensor, count: int, peers: Peers) -> torch.Tensor:
    """Get the last tokens of the rank before: (B, k, E); zeros on the first rank.

    It sends B k E numbers to the next rank, whatever the length; its backward sends as many back.
    All ranks call it, and all ranks run the backward, or none.

    Args:
        x: this rank's part (B, t, E). Only t may differ between ranks.
        count: k.

    Raises:
        ValueError: this rank has fewer than k tokens, and the next rank needs them.
    """
    if x.shape[1] < count and peers.rank < peers.size - 1:
        raise ValueError(
            f"rank {peers.rank} has {x.shape[1]} tokens, but the next rank needs its last {count}: "
            f"give every rank but the last at least {count} tokens"
        )
    if peers.size == 1 or not count:
        return x.new_zeros(x.shape[0], count, *x.shape[2:])
    return _Previous.apply(x, count, peers)


class _Previous(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, count, peers):
        ctx.peers, ctx.shape, ctx.count = peers, x.shape, count
        halo = x.new_zeros(x.shape[0], count, *x.shape[2:])
        first, last = ends(peers)
        peers.exchange(
            None if last else x[:, x.shape[1] - count :].contiguous(),
            peers.rank + 1,
            None if first else halo,
            peers.rank - 1,
        )
        return halo

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        peers = ctx.peers
        first, last = ends(peers)
        dx = gradient.new_zeros(ctx.shape)
        tail = None if last else torch.empty_like(gradient, memory_format=torch.contiguous_format)
        peers.exchange(
            None if first else gradient.contiguous(), peers.rank - 1, tail, peers.rank + 1
        )
        if tail is not None:
            dx[:, dx.shape[1] - ctx.count :] = tail
        return dx, None, None


def ends(peers: Peers) -> tuple[bool, bool]:
    """Whether this rank is the first, and whether it is the last."""
    return peers.rank == 0, peers.rank == peers.size - 1
