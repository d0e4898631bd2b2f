"""A causal convolution over the tokens, each channel by itself, with the inputs that it keeps.

B  sequences in a batch        T  tokens in a sequence        E  channels
k  tokens that an output sees: its own and the k-1 before
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Convolution(nn.Module):
    """Compute y[t] = bias + Σ_j weight[:, j] x[t - (k-1) + j], for j = 0 … k-1."""

    def __init__(self, channels: int, width: int, **place):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, width, **place))
        self.bias = nn.Parameter(torch.empty(channels, **place))

    def forward(
        self,
        x: torch.Tensor,
        before: torch.Tensor | None = None,
        counts: Sequence[int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the outputs, and the inputs to keep for the next tokens.

        Args:
            x: (B, T, E).
            before: (B, k-1, E), the inputs before x; None: zeros.
            counts: how many of the T tokens are real in each sequence; None: all.

        Returns:
            y (B, T, E); and (B, k-1, E), the last inputs up to each sequence's last real token.
        """
        kept = self.weight.shape[1] - 1
        if before is None:
            window = functional.pad(x, (0, 0, kept, 0))
        else:
            window = torch.cat([before.to(x.dtype), x], dim=1)  # (B, k-1 + T, E)
        if x.shape[1] == 1 and not torch.is_grad_enabled():  # decoding
            y = (window * self.weight.t()).sum(1, keepdim=True) + self.bias
        else:
            y = _Causal.apply(window, self.weight, self.bias)
        return y, last_inputs(window, kept, counts)


def last_inputs(window: torch.Tensor, kept: int, counts: Sequence[int] | None) -> torch.Tensor:
    """The `kept` inputs that end with each sequence's last real token, (B, kept, E)."""
    tokens = window.shape[1] - kept
    if counts is None:
        return window[:, tokens:]
    first = torch.tensor(counts, device=window.device)[:, None]  # (B, 1)
    places = first + torch.arange(kept, device=window.device)  # (B, kept)
    return window.gather(1, places[..., None].expand(-1, -1, window.shape[2]))


def real_tokens(counts: Sequence[int], tokens: int, device: torch.device) -> torch.Tensor:
    """Which of the T tokens are real, (B, T, 1). The others pad on the right."""
    counts = torch.tensor(counts, device=device)
    return (torch.arange(tokens, device=device) < counts[:, None])[..., None]


class _Causal(torch.autograd.Function):
    """One product and sum for each of the k inputs: on a CPU faster than `conv1d`.

    It also needs no other order of the dims.
    """

    @staticmethod
    def forward(ctx, window, weight, bias):
        ctx.save_for_backward(window, weight)
        taps = weight.t().contiguous()  # (k, E)
        tokens = window.shape[1] - len(taps) + 1
        y = torch.addcmul(bias, window[:, :tokens], taps[0])
        for place, tap in enumerate(taps[1:], start=1):
            y.addcmul_(window[:, place : place + tokens], tap)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        window, weight = ctx.saved_tensors
        taps, tokens = weight.t().contiguous(), gradient.shape[1]
        of_window, of_taps = torch.zeros_like(window), torch.empty_like(taps)
        for place, tap in enumerate(taps):
            here = slice(place, place + tokens)
            of_window[:, here].addcmul_(gradient, tap)
            of_taps[place] = (gradient * window[:, here]).sum((0, 1))
        return of_window, of_taps.t().contiguous(), gradient.sum((0, 1))
