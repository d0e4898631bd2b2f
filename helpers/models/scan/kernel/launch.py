"""Run the kernel on tensors: compiled on a GPU, interpreted on the CPU."""

from functools import cache

import torch
import triton
import triton.language as tl

from helpers.measure.kernels.interpret import interpreted
from helpers.models.scan.kernel.kernel import selective
from helpers.models.scan.selective import check

TOKENS, CHANNELS = 64, 16  # of a tile: 8 numbers for each of 128 threads
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
FORMATS = {torch.float64: tl.float64}  # other formats compute in float32


def selective_forward(
    x, delta, A, B, C, D=None, h0=None, tile: tuple[int, int] = (TOKENS, CHANNELS)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `selective_scan` in one launch, without gradients: y (B, L, D), state (B, D, N).

    On the CPU, Triton's interpreter takes seconds for a hundred tokens: it is for lessons.

    Args:
        x, delta, A, B, C, D, h0: as for `selective_scan`, on one device.
        tile: the tokens and channels that a program has in registers at a time; powers of 2.

    Raises:
        ValueError: shapes that do not fit.
        RuntimeError: an argument requires a gradient, and autograd is on.
    """
    check(x, delta, A, B, C, D, h0)
    given = [t for t in (x, delta, A, B, C, D, h0) if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        raise RuntimeError(
            "the kernel has no backward: call it under torch.no_grad(), or train with "
            'selective_scan(…, form="fused")'
        )
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    (sequences, length, channels), state = x.shape, A.shape[1]
    if D is None:
        D = x.new_zeros(channels)
    if h0 is None:
        h0 = x.new_zeros(sequences, channels, state)
    h = torch.empty(sequences, state, channels, dtype=dtype, device=x.device)
    h.copy_(h0.mT)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    inputs = (x, delta, A.mT, B.mT, C.mT, D)
    grid = (sequences, triton.cdiv(channels, tile[1]))
    if x.numel():
        kernel = selective if x.is_cuda else on_cpu()
        kernel[grid](
            *(t.contiguous() for t in inputs), y, h, length, channels,
            **constants(dtype, state, tile), **OPTIONS,
        )  # fmt: skip
    return y, h.mT


def constants(dtype: torch.dtype, state: int, tile: tuple[int, int]) -> dict:
    """The compile-time arguments of the kernel."""
    computing = FORMATS.get(dtype, tl.float32)
    return {"STATE": state, "FORMAT": computing, "TOKENS": tile[0], "CHANNELS": tile[1]}


@cache
def on_cpu():
    """The kernel, interpreted."""
    return interpreted(selective)
