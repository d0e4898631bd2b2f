"""The MLPs of a block.

B  sequences        T  tokens        D  width of a token's vector        F  inner width
"""

import torch
from torch import nn
from torch.nn import functional

from helpers.models.attention import FanOut
from helpers.models.shape import GPTShape


class SwiGLU(nn.Module):
    """An MLP with three matrices: the gate multiplies the up projection (Shazeer 2020).

    Args:
        inner: F; None: the configuration's.
    """

    def __init__(self, config: GPTShape, inner: int | None = None, **place):
        super().__init__()
        inner = config.inner if inner is None else inner
        self.fan_out = FanOut()
        self.gate = nn.Linear(config.width, inner, bias=config.bias, **place)
        self.up = nn.Linear(config.width, inner, bias=config.bias, **place)
        self.down = nn.Linear(inner, config.width, bias=config.bias, **place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.fan_out(x, self.gate, self.up)  # (B, T, F)
        return self.down(functional.silu(gate) * up)


class GELU(nn.Module):
    """An MLP with two matrices, as in GPT-2. Arguments as for SwiGLU."""

    def __init__(self, config: GPTShape, inner: int | None = None, **place):
        super().__init__()
        inner = config.inner if inner is None else inner
        self.fan_out = FanOut()
        self.up = nn.Linear(config.width, inner, bias=config.bias, **place)
        self.down = nn.Linear(inner, config.width, bias=config.bias, **place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (up,) = self.fan_out(x, self.up)  # (B, T, F)
        return self.down(functional.gelu(up, approximate="tanh"))


MLPS = {"swiglu": SwiGLU, "gelu": GELU}
