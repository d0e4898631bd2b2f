"""Compile the kernels of a step for a GPU that is not here."""

from functools import cache

import torch

from helpers.measure.kernels.compiled import Compiled, assembled
from helpers.precision.fused_adam.kernel import advance, update
from helpers.precision.fused_adam.launch import BLOCK, OPTIONS, ROWS, formats


@cache
def compile_update(
    capability: int,
    parameters: torch.dtype = torch.float32,
    gradients: torch.dtype = torch.float32,
    moments: torch.dtype = torch.float32,
    low: torch.dtype | None = None,
    block: int = BLOCK,
) -> Compiled:
    """Compile `kernel.update` as the optimizer launches it.

    Args:
        capability: of the GPU: 80 for A100, 90 for H100, 100 for B200.
        parameters, gradients, moments, low: the formats, as `launch.formats` takes them.
        block: the numbers that a program updates.
    """
    types = {
        "rows": "*i64", "blocks": "*i32", "hyper": "*fp64", "found": "*fp32", "scale": "*fp32",
        "factors": "*fp64",
    }  # fmt: skip
    constants = {**formats(parameters, gradients, moments, low), "BLOCK": block}
    return assembled(update, types, constants, capability, OPTIONS, block)


def compile_advance(capability: int) -> Compiled:
    """Compile `kernel.advance` as the optimizer launches it."""
    types = {
        "rows": "*i64", "hyper": "*fp64", "found": "*fp32", "factors": "*fp64", "count": "i32"
    }  # fmt: skip
    return assembled(advance, types, {"BLOCK": ROWS}, capability, OPTIONS, ROWS)
