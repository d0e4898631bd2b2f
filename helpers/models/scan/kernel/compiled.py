"""Compile the kernel for a GPU that is not here."""

from functools import cache

import torch

from helpers.measure.kernels.compiled import Compiled, assembled
from helpers.models.scan.kernel.kernel import selective
from helpers.models.scan.kernel.launch import CHANNELS, OPTIONS, TOKENS, constants

TYPES = {torch.float64: "*fp64", torch.float32: "*fp32", torch.bfloat16: "*bf16"}


@cache
def compile_selective(
    capability: int, dtype: torch.dtype = torch.float32, state: int = 16
) -> Compiled:
    """Compile `kernel.selective` as `selective_forward` launches it.

    Args:
        capability: of the GPU: 80 for A100, 90 for H100, 100 for B200.
        dtype: of x and y, and of all other inputs.
        state: N.
    """
    names = ("x_", "delta_", "A_", "B_", "C_", "skip_", "y_")
    computing = torch.float64 if dtype is torch.float64 else torch.float32
    types = dict.fromkeys(names, TYPES[dtype])
    types |= {"state_": TYPES[computing], "length": "i32", "channels": "i32"}
    tile = (TOKENS, CHANNELS)
    fixed = constants(computing, state, tile)
    return assembled(selective, types, fixed, capability, OPTIONS, TOKENS * CHANNELS)
