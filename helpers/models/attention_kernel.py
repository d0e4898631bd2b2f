"""A block of attention as one Triton kernel, forward only: FlashAttention, and a step of a ring.

A program has some queries of one head, and reads all keys that they see, a tile at a time. Scores
and weights exist in registers only. What a tile adds is merged as blocks are (`blockwise`), with
the maximum in place of the log-sum-exp, which is known at the end. Exponentials are powers of 2:
the GPU has an instruction for these.

Source: Dao 2023, "FlashAttention-2", arXiv:2307.08691, section 3.1.
"""

import math
from functools import cache

import torch
import triton
import triton.language as tl

from helpers.measure.clock import current_gpu
from helpers.measure.kernels.address import address
from helpers.measure.kernels.compiled import Compiled, assembled
from helpers.measure.kernels.interpret import interpreted

OPTIONS = {"num_warps": 4, "num_stages": 2}
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
LN_2 = math.log(2)


def tile_of(width: int) -> tuple[int, int]:
    """Queries and keys of a tile: with more keys of a wide head, an A100's registers spill."""
    return 64, 64 if width <= 64 else 32


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def added(a, b):
    return a + b


@triton.jit
def attention(
    q_, k_, v_, y_, total_, tokens, keys, first, scale,
    WIDTH: tl.constexpr, SHARED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute y and L. Program (i, h) has the queries from i QUERIES of head h.

    Args:
        q_, y_, k_, v_: (B H, T, d) twice, (B K, S, d) twice, contiguous.
        total_: L, (B H, T), in float32.
        tokens, keys, first: T and S; query t sees the keys up to t + first.
        scale: of scores, times log2 e.
        WIDTH, SHARED: d, a power of 2, and H/K.
        QUERIES, KEYS: of a tile, powers of 2.
    """
    begin = tl.program_id(0) * QUERIES
    head = tl.program_id(1).to(tl.int64)
    t, s, d = begin + tl.arange(0, QUERIES), tl.arange(0, KEYS), tl.arange(0, WIDTH)
    mine = (head * tokens + t)[:, None] * WIDTH + d[None, :]
    real = (t < tokens)[:, None]
    q = tl.load(q_ + mine, mask=real, other=0)
    offset = head // SHARED * keys * WIDTH
    y = tl.full((QUERIES, WIDTH), 0, tl.float32)
    total = tl.full((QUERIES,), 0, tl.float32)
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    for start in range(0, tl.minimum(keys, begin + QUERIES + first), KEYS):
        at = start + s
        inside = at < keys
        down, across = at[:, None] * WIDTH + d[None, :], at[None, :] * WIDTH + d[:, None]
        k = tl.load(k_ + offset + across, mask=inside[None, :], other=0)  # (d, KEYS)
        v = tl.load(v_ + offset + down, mask=inside[:, None], other=0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        seen = inside[None, :] & (at[None, :] <= t[:, None] + first)
        scores = tl.where(seen, scores, float("-inf"))
        now = tl.maximum(highest, tl.reduce(scores, 1, larger))
        base = tl.where(now == float("-inf"), 0, now)  # a query that has seen no key
        weights = tl.exp2(scores - base[:, None])
        smaller = tl.exp2(highest - base)
        total = total * smaller + tl.reduce(weights, 1, added)
        y = y * smaller[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = now
    total = tl.where(total == 0, 1, total)
    tl.store(y_ + mine, (y / total[:, None]).to(q.dtype), mask=real)
    found = (highest + tl.log2(total)) * 0.6931471805599453  # ln 2
    tl.store(total_ + head * tokens + t, found, mask=t < tokens)


def attention_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    first: int | None = None,
    tile: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute causal attention in one launch, without gradients: y (B, H, T, d) and L (B, H, T).

    On the CPU, Triton's interpreter takes a second for a hundred tokens: it is for lessons. It
    multiplies bfloat16 as if its bits were whole numbers, so it gets these as float32.

    Args:
        q: (B, H, T, d); d is a power of 2, and 16 at least.
        k, v: (B, K, S, d); K divides H.
        first: query t sees the keys up to t + first; S for all. None: S - T, as in `blockwise`. A
            query that sees no key has 0 and -inf, so that the blocks of a ring `merge`.
        tile: queries and keys in registers at a time, powers of 2; None: as in `tile_of`.

    Raises:
        ValueError: the width of a head.
        RuntimeError: an argument requires a gradient, and autograd is on.
    """
    (sequences, heads, tokens, width), keys = q.shape, k.shape[2]
    if width < 16 or width & (width - 1):
        raise ValueError(f"the width of a head is {width}: a power of 2, and 16 at least")
    for tensor in (q, k, v):
        address(tensor)  # refuses a DTensor
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise RuntimeError("the kernel has no backward: call it under torch.no_grad()")
    dtype, tile = q.dtype, tile or tile_of(width)
    if not q.is_cuda and dtype is torch.bfloat16:
        q, k, v = (one.float() for one in (q, k, v))
    q, k, v = (one.contiguous() for one in (q, k, v))
    y, total = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
    if q.numel():
        kernel = attention if q.is_cuda else on_cpu()
        with current_gpu(q.device):
            kernel[triton.cdiv(tokens, tile[0]), sequences * heads](
                q, k, v, y, total, tokens, keys, keys - tokens if first is None else first,
                width**-0.5 / LN_2, **constants(width, heads // k.shape[1], tile), **OPTIONS,
            )  # fmt: skip
    return y.to(dtype), total


def constants(width: int, shared: int, tile: tuple[int, int]) -> dict:
    """The compile-time arguments of the kernel."""
    return {"WIDTH": width, "SHARED": shared, "QUERIES": tile[0], "KEYS": tile[1]}


@cache
def on_cpu():
    """The kernel, interpreted."""
    return interpreted(attention)


@cache
def compile_attention(capability: int, dtype=torch.bfloat16, width: int = 64) -> Compiled:
    """Compile `attention` as it is launched, for the GPU of a capability: 80 for A100, …."""
    names, tile = ("q_", "k_", "v_", "y_"), tile_of(width)
    types = dict.fromkeys(names, TYPES[dtype]) | {"total_": "*fp32", "scale": "fp32"}
    types |= dict.fromkeys(("tokens", "keys", "first"), "i32")
    of = constants(width, 4, tile), capability, OPTIONS, tile[0] * width, (*names, "total_")
    return assembled(attention, types, *of)
