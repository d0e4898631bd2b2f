"""Mamba: a selective state space model as a mixer (Gu and Dao 2023, arXiv:2312.00752, 3.4).

B  sequences in a batch        D  width of a token's vector     N  numbers of state per channel
T  tokens in a sequence        E  channels, 2 D                 R  rank of the step sizes, D/16
k  tokens that the convolution sees

Each channel has a state h of N numbers: h[t] = exp(Δ A) h[t-1] + Δ B x[t], and y[t] = C h[t]. The
model is **selective**: the step Δ and the matrices B and C depend on the token. So a token decides
what the state forgets (Δ is large), ignores (Δ is small) and shows.
"""

import torch
from torch import nn
from torch.nn import functional

from helpers.models.attention import FanOut, Positions
from helpers.models.caches.cache import BlockCache, Kept
from helpers.models.convolution import Convolution, real_tokens
from helpers.models.scan.selective import selective_scan, selective_step
from helpers.models.shape import GPTShape


class Mamba(nn.Module):
    """Mix tokens through a state of fixed size. Parameters are named after the paper's symbols.

    `skip` is the paper's vector D. `recompute="selective"` changes nothing here: the scan keeps few
    states of its own accord.
    """

    def __init__(self, config: GPTShape, **place):
        super().__init__()
        settings, bias = config.mamba, config.bias
        channels, rank = settings.channels(config.width), settings.rank_of(config.width)
        self.fan_out = FanOut()
        self.inner = nn.Linear(config.width, channels, bias=bias, **place)
        self.gate = nn.Linear(config.width, channels, bias=bias, **place)
        self.convolution = Convolution(channels, settings.convolution, **place)
        self.rank = nn.Linear(channels, rank, bias=False, **place)
        self.delta = nn.Linear(rank, channels, **place)
        self.B = nn.Linear(channels, settings.state, bias=False, **place)
        self.C = nn.Linear(channels, settings.state, bias=False, **place)
        self.A_log = nn.Parameter(torch.empty(channels, settings.state, **place))
        self.skip = nn.Parameter(torch.empty(channels, **place))
        self.out = nn.Linear(channels, config.width, bias=bias, **place)
        self.over_tokens = selective_scan  # others may replace it

    @staticmethod
    def kept(config: GPTShape) -> Kept:
        """Say what the block keeps of a sequence: the convolution's inputs, and the state."""
        settings = config.mamba
        channels = settings.channels(config.width)
        return Kept(per_sequence=((settings.convolution - 1, channels), (channels, settings.state)))

    def forward(self, x: torch.Tensor, positions: Positions, cache: BlockCache | None = None):
        before, h = (None, None) if cache is None else cache.read()
        counts = None if cache is None else cache.counts
        u, gate = self.fan_out(x, self.inner, self.gate)  # (B, T, E)
        u, before = self.convolution(u, before, counts)
        u = functional.silu(u)
        delta = functional.softplus(wide(self.delta(self.rank(u))))  # (B, T, E)
        if counts is not None:  # a step of 0 leaves the state as it is
            delta = delta * real_tokens(counts, x.shape[1], x.device)
        y, h = self.scan(u, delta, self.B(u), self.C(u), h)
        if cache is not None:
            cache.write(before, h)
        return self.out(y * functional.silu(gate))  # (B, T, D)

    def scan(self, u, delta, B, C, h):
        """The selective scan, or one step of it. It computes in float32 at least."""
        given = [wide(t) for t in (u, delta, -torch.exp(wide(self.A_log)), B, C, self.skip)]
        h = h if h is None else h.to(given[0].dtype)
        if h is None or u.shape[1] != 1:
            y, h = self.over_tokens(*given, h)
        else:
            u_, delta_, A, B_, C_, D = given
            y, h = selective_step(u_[:, 0], delta_[:, 0], A, B_[:, 0], C_[:, 0], D, h)
            y = y[:, None]
        return y.to(u.dtype), h


def wide(x: torch.Tensor) -> torch.Tensor:
    """The tensor in float32 at least: a product of many decays needs its digits."""
    return x if x.dtype is torch.float64 else x.float()
