"""Mamba-2: heads with one decay each, so that a chunk is a matrix product (Dao and Gu 2024, 7).

B  sequences in a batch        D  width of a token's vector     H  heads, E/P
T  tokens in a sequence        E  channels, 2 D                 P  channels of a head
N  numbers of state            G  groups; H/G heads share B and C
k  tokens that the convolution sees

Beside Mamba, arXiv:2405.21060 changes four things. A is one number per head. Δ, B and C come from
the block's input, beside x and the gate, not from x behind the convolution. B and C pass through
a convolution too. And the last matrix gets the result of a gated norm.
"""

import torch
from torch import nn
from torch.nn import functional

from helpers.models.attention import FanOut, Positions
from helpers.models.caches.cache import BlockCache, Kept
from helpers.models.convolution import Convolution, real_tokens
from helpers.models.mamba import wide
from helpers.models.scan.ssd import ssd, ssd_step
from helpers.models.shape import GPTShape


class Mamba2(nn.Module):
    """Mix tokens through a state of fixed size per head. `skip` is the paper's D, (H,).

    The sizes of a forward come from the parameters, so that a rank may have some of the heads.
    """

    def __init__(self, config: GPTShape, **place):
        super().__init__()
        self.settings, bias = config.mamba2, config.bias
        settings, width = config.mamba2, config.width
        channels, heads = settings.channels(width), settings.heads(width)
        shared = settings.groups * settings.state  # G N
        self.fan_out = FanOut()
        self.inner = nn.Linear(width, channels, bias=bias, **place)
        self.gate = nn.Linear(width, channels, bias=bias, **place)
        self.B = nn.Linear(width, shared, bias=bias, **place)
        self.C = nn.Linear(width, shared, bias=bias, **place)
        self.delta = nn.Linear(width, heads, **place)
        self.convolution = Convolution(channels, settings.convolution, **place)
        self.convolution_B = Convolution(shared, settings.convolution, **place)
        self.convolution_C = Convolution(shared, settings.convolution, **place)
        self.A_log = nn.Parameter(torch.empty(heads, **place))
        self.skip = nn.Parameter(torch.empty(heads, **place))
        self.gated_norm = GatedNorm(channels, settings.groups, config.norm_eps, **place)
        self.out = nn.Linear(channels, width, bias=bias, **place)
        self.over_tokens = ssd  # others may replace it

    @staticmethod
    def kept(config: GPTShape) -> Kept:
        """Say what the block keeps of a sequence: the convolutions' inputs, and the state."""
        settings, width = config.mamba2, config.width
        before, shared = settings.convolution - 1, settings.groups * settings.state
        state = (settings.heads(width), settings.head, settings.state)
        inputs = (settings.channels(width), shared, shared)
        return Kept(per_sequence=(*((before, channels) for channels in inputs), state))

    def forward(self, x: torch.Tensor, positions: Positions, cache: BlockCache | None = None):
        *before, h = (None,) * 4 if cache is None else cache.read()
        counts = None if cache is None else cache.counts
        u, B, C, gate, delta = self.fan_out(x, self.inner, self.B, self.C, self.gate, self.delta)
        convolutions = (self.convolution, self.convolution_B, self.convolution_C)
        seen = [
            convolution(t, old, counts)
            for convolution, t, old in zip(convolutions, (u, B, C), before, strict=True)
        ]
        u, B, C = (functional.silu(y) for y, _ in seen)  # (B, T, E), (B, T, G N) twice
        delta = functional.softplus(wide(delta))  # (B, T, H)
        if counts is not None:  # a step of 0 leaves the state as it is
            delta = delta * real_tokens(counts, x.shape[1], x.device)
        y, h = self.scan(u, delta, B, C, h)
        if cache is not None:
            cache.write(*(kept for _, kept in seen), h)
        return self.out(self.gated_norm(y, gate))  # (B, T, D)

    def scan(self, u, delta, B, C, h):
        """The scan by chunks, or one step of it. It computes in float32 at least."""
        x = wide(u).unflatten(-1, (-1, self.settings.head))  # (B, T, H, P)
        B, C = (wide(t).unflatten(-1, (-1, self.settings.state)) for t in (B, C))  # (B, T, G, N)
        A, D = -torch.exp(wide(self.A_log)), wide(self.skip)
        h = h if h is None else h.to(x.dtype)
        if h is None or u.shape[1] != 1:
            y, h = self.over_tokens(x, delta, A, B, C, D, h, chunk=self.settings.chunk)
        else:
            y, h = ssd_step(x[:, 0], delta[:, 0], A, B[:, 0], C[:, 0], D, h)
            y = y[:, None]
        return y.to(u.dtype).flatten(-2), h


class GatedNorm(nn.Module):
    """The RMS norm of y silu(gate), over each group's channels, times a scale.

    `over_ranks` gets each group's sum of squares. A module, so that others can replace it.
    """

    def __init__(self, channels: int, groups: int, eps: float, **place):
        super().__init__()
        self.width, self.eps = channels // groups, eps
        self.weight = nn.Parameter(torch.empty(channels, **place))
        self.over_ranks = nn.Identity()

    def forward(self, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """(B, T, E) each; the result too."""
        gated = wide(y * functional.silu(gate))
        groups = gated.unflatten(-1, (-1, min(self.width, gated.shape[-1])))  # (B, T, G, E/G)
        squares = self.over_ranks(groups.square().sum(-1, keepdim=True))
        normed = groups * torch.rsqrt(squares / self.width + self.eps)
        return normed.flatten(-2).to(y.dtype) * self.weight
