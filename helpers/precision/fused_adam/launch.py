"""Launch the two kernels of a step: compiled on a GPU, interpreted on the CPU."""

from functools import cache

import torch
import triton
import triton.language as tl

from helpers.measure.clock import current_gpu
from helpers.measure.kernels.interpret import interpreted
from helpers.precision.fused_adam.kernel import FACTORS, adamw, advance, update
from helpers.precision.fused_adam.table import Table

BLOCK = 1024  # numbers for each program of `update`: with 128 threads, two loads of 128 bits each
ROWS = 128  # tensors for each program of `advance`
# Fusion: a · b + c in one instruction, rounded once. Triton 3.10 will no longer do it by default.
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    None: None,
}


def formats(
    parameters: torch.dtype,
    gradients: torch.dtype,
    moments: torch.dtype,
    low: torch.dtype | None = None,
) -> dict:
    """The compile-time arguments of `update`. It computes in float32, and float64 in float64.

    Args:
        low: the format of the low-precision copies of the parameters, if there are any.
    """
    computing = tl.float64 if parameters is torch.float64 else tl.float32
    present = [dtype for dtype in (parameters, gradients, moments, low) if dtype is not None]
    return {
        "RULE": adamw,
        "P": TYPES[parameters],
        "G": TYPES[gradients],
        "S": TYPES[moments],
        "LOW": TYPES[low],
        "C": computing,
        "TOGETHER": 16 // max(dtype.itemsize for dtype in present),
    }


def launch_step(table: Table, found: torch.Tensor, scale: torch.Tensor, constants: dict):
    """Advance the steps of all tensors in the table, and update them: two launches.

    Args:
        found: float32, one number: not 0 if some gradient overflowed; then nothing changes.
        scale: float32, one number: the gradients are divided by it.
        constants: the result of `formats`.
    """
    count = len(table.rows)
    factors = torch.empty(count, FACTORS.value, dtype=torch.float64, device=table.device)
    if table.device.type == "cuda":
        with current_gpu(table.device):
            launch_both(advance, update, table, found, scale, factors, constants)
    else:
        by_numpy = {**constants, "RULE": constants["RULE"].fn}
        launch_both(*on_cpu(), table, found, scale, factors, by_numpy)


def launch_both(advance, update, table, found, scale, factors, constants):
    rows, hyper = table.rows, table.hyper
    grid = (triton.cdiv(len(rows), ROWS),)
    advance[grid](rows, hyper, found, factors, len(rows), BLOCK=ROWS, **OPTIONS)
    if len(table.blocks):  # else all tensors are empty
        arguments = (rows, table.blocks, hyper, found, scale, factors)
        update[(len(table.blocks),)](*arguments, **constants, BLOCK=table.block, **OPTIONS)


@cache
def on_cpu():
    """The two kernels, interpreted."""
    return interpreted(advance), interpreted(update)
