"""The states at the cuts of a sequence: each rank gets the state before its part, with autograd.

A part of the sequence is one step of the recurrence: it multiplies the state by its decay a_r, and
adds e_r, its last state if it begins at zero. So the states h_r before the parts are a scan over
ranks, and so is the gradient, from the last rank to the first:

    h_(r+1) = a_r h_r + e_r                       h_0 = 0
    gradient of e_r:  ε_r = g_(r+1) + a_(r+1) ε_(r+1)        of a_r:  ε_r h_r

g_r is the gradient that rank r's own part gives for h_r.
"""

import torch
from torch.autograd.function import once_differentiable

from helpers.comm.exclusive_scan import exclusive_scan
from helpers.comm.messages import Peers
from helpers.models.scan.combine import combine


def state_before(decay: torch.Tensor, end: torch.Tensor, peers: Peers) -> torch.Tensor:
    """Compute the state before this rank's part (B, …); zeros on the first rank.

    All ranks call it, and all ranks run the backward, or none.

    Args:
        decay: the product of the part's decays. It broadcasts to the shape of `end`.
        end: the part's last state (B, …), if it begins at zero.
        peers: the ranks that share the sequence, in its order.
    """
    return torch.zeros_like(end) if peers.size == 1 else _StateBefore.apply(decay, end, peers)


class _StateBefore(torch.autograd.Function):
    @staticmethod
    def forward(ctx, decay, end, peers):
        before = scanned(decay, end, peers)
        ctx.peers = peers
        ctx.save_for_backward(decay, before)
        return before

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        decay, before = ctx.saved_tensors
        later = scanned(decay, gradient, ctx.peers, reverse=True)  # ε
        return (later * before).sum_to_size(decay.shape), later, None


def scanned(decay, end, peers, reverse=False) -> torch.Tensor:
    pair = exclusive_scan((decay, end), combine, peers, reverse)
    return torch.zeros_like(end) if pair is None else pair[1]
