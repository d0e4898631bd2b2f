"""Both scans on a sequence that is cut over ranks: scan, hand on, mend.

1. Each rank scans its own part from a zero state, and computes the product of its decays.
2. The ranks hand on decays and states: `state_before`. The messages do not grow with the length.
3. Each rank adds what the state before its part adds to its outputs: the recurrence is linear.

B  sequences      t  tokens of this rank's part      D  channels      N  state      H  heads
P  width of a head                                   G  groups of B and C

A part of the sequence is one step of the recurrence: it multiplies the state by its decay a_r, and
adds e_r, its last state if it begins at zero. So the states h_r before the parts are a scan over
ranks, and so is the gradient, from the last rank to the first:

    h_(r+1) = a_r h_r + e_r                       h_0 = 0
    gradient of e_r:  ε_r = g_(r+1) + a_(r+1) ε_(r+1)        of a_r:  ε_r h_r

g_r is the gradient that rank r's own part gives for h_r.

The parts may have different lengths, also 0. Every rank gets its part of the result, and the state
after its part; the last rank's is that of the sequence.
"""

import torch
from torch.autograd.function import once_differentiable

from helpers.comm.exclusive_scan import exclusive_scan
from helpers.comm.messages import Peers
from helpers.models.scan.recurrence import combine
from helpers.models.scan.selective import selective_scan
from helpers.models.scan.ssd import ssd


def selective_scan_over_ranks(
    x, delta, A, B, C, D=None, h0=None, *, peers: Peers
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `selective_scan` of the whole sequence: y (B, t, D) and the state (B, D, N).

    Args:
        x, delta, A, B, C, D: as for `selective_scan`, of this rank's part.
        h0: the state before the sequence; only the first rank may have one.
        peers: the ranks that share the sequence, in its order.

    Raises:
        ValueError: h0 on another rank than the first; shapes that do not fit.
    """
    only_first(h0, peers)
    y, end = selective_scan(x, delta, A, B, C, D, h0)
    decay = torch.exp(delta.to(end.dtype).sum(1).unsqueeze(-1) * A)  # (B, D, N)
    before = state_before(decay, end, peers)
    mended, _ = selective_scan(torch.zeros_like(x), delta, A, B, C, None, before)
    return y + mended, torch.addcmul(end, decay, before)


def ssd_over_ranks(
    x, delta, A, B, C, D=None, h0=None, *, peers: Peers, chunk: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `ssd` of the whole sequence: y (B, t, H, P) and the state (B, H, P, N).

    The arguments are those of `selective_scan_over_ranks`, in the shapes of `ssd`.
    """
    only_first(h0, peers)
    y, end = ssd(x, delta, A, B, C, D, h0, chunk)
    log = delta.to(end.dtype) * A  # (B, t, H)
    decay = torch.exp(log.sum(1))[..., None, None]  # (B, H, 1, 1)
    before = state_before(decay, end, peers)
    read = C.to(end.dtype).transpose(1, 2).unsqueeze(2)  # (B, G, 1, t, N)
    states = before.unflatten(1, (C.shape[2], -1))  # (B, G, H/G, P, N)
    mended = (read @ states.mT).flatten(1, 2).transpose(1, 2)  # (B, t, H, P)
    mended = mended * torch.exp(log.cumsum(1)).unsqueeze(-1)
    return y + mended.to(y.dtype), torch.addcmul(end, decay, before)


def only_first(h0, peers: Peers):
    if h0 is not None and peers.rank:
        raise ValueError(
            f"rank {peers.rank} has a state before the sequence, but its part begins where another "
            "rank's ends: give h0 to the first rank only"
        )


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
