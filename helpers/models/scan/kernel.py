"""The selective scan as one Triton kernel, forward only: every program scans some channels.

A program has one sequence, and some tokens at a time. Inputs and outputs move once between memory
and the chip. The states never do: they exist in registers, and only the state between two tiles of
tokens is stored. Within a tile, the tokens are scanned by a tree, with the associative operator of
`combine`.

Source: Gu and Dao 2023, arXiv:2312.00752, section 3.3.2 and appendix D.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from helpers.measure.clock import current_gpu
from helpers.measure.kernels.address import address
from helpers.measure.kernels.compiled import Compiled, assembled
from helpers.measure.kernels.interpret import interpreted
from helpers.models.scan.selective import check

TOKENS, CHANNELS = 64, 16  # of a tile: 8 numbers for each of 128 threads
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
FORMATS = {torch.float64: tl.float64}  # other formats compute in float32
TYPES = {torch.float64: "*fp64", torch.float32: "*fp32", torch.bfloat16: "*bf16"}


@triton.jit
def combine(decay1, state1, decay2, state2):
    """The earlier steps, then the later steps."""
    return decay2 * decay1, decay2 * state1 + state2


@triton.jit
def selective(
    x_,
    delta_,
    A_,
    B_,
    C_,
    skip_,
    y_,
    state_,
    length,
    channels,
    STATE: tl.constexpr,
    FORMAT: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute y, and replace the state before the first token by the one after the last.

    Program (b, k) works on sequence b, and on the CHANNELS channels from k CHANNELS. All tensors
    are contiguous.

    Args:
        x_, delta_, y_: (B, L, D).
        A_: (N, D).
        B_, C_: (B, N, L).
        skip_: (D,).
        state_: (B, N, D).
        length, channels: L and D.
        STATE: N.
        FORMAT: of the computation, and of the state.
        TOKENS, CHANNELS: of a tile, powers of 2.
    """
    sequence = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    rows = tl.arange(0, TOKENS)
    real = d < channels
    skip = tl.load(skip_ + d, mask=real, other=0).to(FORMAT)
    first = (rows == 0)[:, None] & real[None, :]
    last = (rows == TOKENS - 1)[:, None] & real[None, :]
    for start in range(0, length, TOKENS):
        t = start + rows
        inside = t < length
        both = inside[:, None] & real[None, :]
        places = (sequence * length + t)[:, None] * channels + d[None, :]
        x = tl.load(x_ + places, mask=both, other=0).to(FORMAT)
        # Beyond the end Δ is 0: such a token leaves the state as it is.
        delta = tl.load(delta_ + places, mask=both, other=0).to(FORMAT)
        scaled = delta * x
        y = skip[None, :] * x
        for n in range(STATE):
            row = sequence * STATE + n
            A = tl.load(A_ + n * channels + d, mask=real, other=0).to(FORMAT)
            B = tl.load(B_ + row * length + t, mask=inside, other=0).to(FORMAT)
            C = tl.load(C_ + row * length + t, mask=inside, other=0).to(FORMAT)
            decay = tl.exp(delta * A[None, :])
            # The state before the tile enters with the first token. Only the last token stores the
            # state. It depends on what the first token loaded: so the store cannot be too early.
            states = state_ + (row * channels + d)[None, :] + (rows * 0)[:, None]
            before = tl.load(states, mask=first, other=0)
            step = B[:, None] * scaled + decay * before
            _, h = tl.associative_scan((decay, step), 0, combine)
            tl.store(states, h, mask=last)
            y += C[:, None] * h
        tl.store(y_ + places, y, mask=both)
        tl.debug_barrier()  # the next tile loads what other threads have stored


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
    for tensor in given:
        address(tensor)  # refuses a DTensor
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
        with current_gpu(x.device):
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


@cache
def compile_selective(
    capability: int,
    dtype: torch.dtype = torch.float32,
    state: int = 16,
    aligned: bool = False,
) -> Compiled:
    """Compile `selective` as `selective_forward` launches it.

    Args:
        capability: of the GPU: 80 for A100, 90 for H100, 100 for B200.
        dtype: of x and y, and of all other inputs.
        state: N.
        aligned: whether D is a multiple of 16, as in most models: loads and stores have 128 bits.
    """
    names = ("x_", "delta_", "A_", "B_", "C_", "skip_", "y_")
    computing = torch.float64 if dtype is torch.float64 else torch.float32
    types = dict.fromkeys(names, TYPES[dtype])
    types |= {"state_": TYPES[computing], "length": "i32", "channels": "i32"}
    tile = (TOKENS, CHANNELS)
    multiples = (*names, "state_", "channels") if aligned else ()
    fixed = constants(computing, state, tile)
    return assembled(selective, types, fixed, capability, OPTIONS, TOKENS * CHANNELS, multiples)
