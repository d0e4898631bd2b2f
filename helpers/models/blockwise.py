"""Blockwise attention (FlashAttention): the matrix of scores never exists, and the result is exact.

B  sequences     T  queries     H  heads                   L  log-sum-exp: the log of the sum of a
d  width         S  keys        w  width of the values        query's exponentials, (B, H, T)

A block of keys gives each query a result y and its L. Two blocks merge exactly:

    L = log(exp L₁ + exp L₂)        y = exp(L₁ - L) y₁ + exp(L₂ - L) y₂

The backward keeps L, and makes each block's weights again: exp(scores - L). So it saves T numbers
for each head in place of T S (Dao et al. 2022, FlashAttention, section 3.1 and appendix B).
"""

from collections.abc import Iterator

import torch
from torch.autograd.function import once_differentiable

SIZE = 256  # queries and keys in a block


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Let queries (..., T, d) read a block of keys (..., S, d) and values (..., S, w).

    Args:
        seen: True where a query may see a key; it broadcasts to (..., T, S). None:
            everywhere.

    Returns:
        y (..., T, w) and L (..., T), in float32 or wider. A query that sees no key has
        0 and -inf.
    """
    scores = scores_of(q, k, seen)
    total = scores.logsumexp(-1)
    weights = weights_of(scores, total)
    return (weights.to(v.dtype) @ v).to(total.dtype), total


def scores_of(q, k, seen):
    scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
    return scores if seen is None else scores.masked_fill(~seen, -torch.inf)


def weights_of(scores: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    return (scores - finite(total).unsqueeze(-1)).exp()


def finite(total: torch.Tensor) -> torch.Tensor:
    """Return L without -inf: a difference of two infinities is no number."""
    return total.clamp(min=torch.finfo(total.dtype).min)


def merge(y: torch.Tensor, total: torch.Tensor, other: torch.Tensor, others: torch.Tensor):
    """Return y and L over two sets of keys, from y and L over each: (..., T, w) and (..., T)."""
    both = torch.logaddexp(total, others)
    first, second = ((one - finite(both)).exp().unsqueeze(-1) for one in (total, others))
    return first * y + second * other, both


def gradients(grad, q, k, v, total, inner, seen=None):
    """Return the gradients of q, k and v that one block of keys contributes.

    Args:
        grad: of the result over all keys, (..., T, w).
        total: L over all keys, (..., T).
        inner: the sum of grad times the result, (..., T), which softmax's backward
            subtracts.
    """
    weights = weights_of(scores_of(q, k, seen), total)
    to_scores = weights * ((grad @ v.mT).to(total.dtype) - inner.unsqueeze(-1))
    to_scores = (to_scores * q.shape[-1] ** -0.5).to(q.dtype)
    return to_scores @ k, to_scores.mT @ q, weights.to(grad.dtype).mT @ grad


class Blockwise(torch.autograd.Function):
    """Attention of q (B, H, T, d) to k (B, H, S, d) and v (B, H, S, w), block by block."""

    @staticmethod
    def forward(ctx, q, k, v, seen, size):
        y = q.new_zeros(
            *q.shape[:-1], v.shape[-1], dtype=torch.promote_types(q.dtype, torch.float32)
        )
        total = torch.full_like(y[..., 0], -torch.inf)
        for rows, keys, mask in blocks(q, k, seen, size):
            read = attend(q[..., rows, :], k[..., keys, :], v[..., keys, :], mask)
            y[..., rows, :], total[..., rows] = merge(y[..., rows, :], total[..., rows], *read)
        y = y.to(q.dtype)
        ctx.save_for_backward(q, k, v, seen, y, total)
        ctx.size = size
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, seen, y, total = ctx.saved_tensors
        inner = (grad * y).to(total.dtype).sum(-1)
        found = [torch.zeros_like(one) for one in (q, k, v)]
        for rows, keys, mask in blocks(q, k, seen, ctx.size):
            of_rows = (one[..., rows] for one in (total, inner))
            parts = gradients(
                grad[..., rows, :],
                *(one[..., at, :] for one, at in ((q, rows), (k, keys), (v, keys))),
                *of_rows,
                mask,
            )
            for whole, at, part in zip(found, (rows, keys, keys), parts, strict=True):
                whole[..., at, :] += part
        return *found, None, None


def blocks(
    q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor | None, size: int
) -> Iterator[tuple[slice, slice, torch.Tensor | None]]:
    """Cut T × S scores into blocks: slices of queries and of keys, and the block's mask.

    Without a mask the queries are of the last T of the S tokens. Blocks that no query sees are left
    out: nearly half of them.
    """
    tokens, keys = q.shape[-2], k.shape[-2]
    earlier = keys - tokens
    for first in range(0, tokens, size):
        rows = range(first, min(first + size, tokens))
        for begin in range(0, keys, size):
            columns = range(begin, min(begin + size, keys))
            place = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
            if seen is not None:
                yield *place, seen.expand(*seen.shape[:-2], tokens, keys)[..., place[0], place[1]]
            elif columns[-1] <= rows[0] + earlier:
                yield *place, None
            elif columns[0] <= rows[-1] + earlier:
                mask = torch.ones(len(rows), len(columns), dtype=torch.bool, device=q.device)
                yield *place, mask.tril(rows[0] + earlier - columns[0])


def blockwise(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: torch.Tensor | None = None,
    size: int = SIZE,
) -> torch.Tensor:
    """Compute softmax(q kᵀ / √d) v as (B, H, T, w), `size` queries and keys at a time.

    Args:
        q: (B, H, T, d).
        k, v: (B, K, S, d) and (B, K, S, w); K divides H.
        seen: as for `attention.Core`.
    """
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = (one.repeat_interleave(shared, dim=1) for one in (k, v))
    return Blockwise.apply(q, k, v, seen, size)
