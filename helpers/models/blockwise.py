"""Blockwise attention (FlashAttention): the matrix of scores never exists, and the result is exact.

B  sequences     T  queries     H  heads                   L  log-sum-exp: the log of the sum of a
d  width         S  keys        w  width of the values        query's exponentials, (B, H, T)

A block of keys gives each query a result y and its L. Two blocks merge exactly:

    L = log(exp L₁ + exp L₂)        y = exp(L₁ - L) y₁ + exp(L₂ - L) y₂

The backward keeps L, and makes each block's weights again: exp(scores - L). So it saves T numbers
for each head in place of T S (Dao et al. 2022, FlashAttention, section 3.1 and appendix B).
"""

from collections.abc import Iterable, Iterator, Sequence

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


def read(y, total, q, k, v, blocks):
    """Add to y and L what the queries read in these blocks of keys and values, in place."""
    for rows, keys, mask in blocks:
        found = attend(q[..., rows, :], k[..., keys, :], v[..., keys, :], mask)
        y[..., rows, :], total[..., rows] = merge(y[..., rows, :], total[..., rows], *found)


def nothing(q: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y and L of queries that have read no key yet: 0 and -inf."""
    wide = torch.promote_types(q.dtype, torch.float32)
    y = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=wide)
    return y, torch.full_like(y[..., 0], -torch.inf)


def add_gradients(found, grad, q, k, v, total, inner, blocks):
    """Add these blocks' gradients of q, k and v to `found`, in place.

    Keys and values may have a dim of 1 that the queries share: their gradient is a sum over it.
    """
    for rows, keys, mask in blocks:
        parts = gradients(
            grad[..., rows, :],
            *(one[..., at, :] for one, at in ((q, rows), (k, keys), (v, keys))),
            *(one[..., rows] for one in (total, inner)),
            mask,
        )
        for whole, at, part in zip(found, (rows, keys, keys), parts, strict=True):
            whole[..., at, :] += part.sum_to_size(whole[..., at, :].shape)


class Blockwise(torch.autograd.Function):
    """Attention of q (B, H, T, d) to k (B, H, S, d) and v (B, H, S, w), block by block."""

    @staticmethod
    def forward(ctx, q, k, v, seen, size, places):
        y, total = nothing(q, v)
        read(y, total, q, k, v, blocks(q, k, seen, size, places))
        y = y.to(q.dtype)
        ctx.save_for_backward(q, k, v, seen, y, total)
        ctx.size, ctx.places = size, places
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, seen, y, total = ctx.saved_tensors
        inner = (grad * y).to(total.dtype).sum(-1)
        found = [torch.zeros_like(one) for one in (q, k, v)]
        cut = blocks(q, k, seen, ctx.size, ctx.places)
        add_gradients(found, grad, q, k, v, total, inner, cut)
        return *found, None, None, None


Span = tuple[int, range]  # a document's number, and places in it
Places = tuple[Sequence[Span], Sequence[Span]]


def blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    seen: torch.Tensor | None,
    size: int,
    places: Places | None = None,
) -> Iterator[tuple[slice, slice, torch.Tensor | None]]:
    """Cut T × S scores into blocks: slices of queries and of keys, and the block's mask.

    Without a mask, no query sees a later key, or another document's. Blocks that no query sees are
    left out: nearly half of them, and more with documents.

    Args:
        places: those of the queries and of the keys in their sequence: documents, and ranges that
            go up in each; None: the queries are the last T of the S tokens of one document.
    """
    tokens, keys = q.shape[-2], k.shape[-2]
    queries, columns = places or ([(0, range(keys - tokens, keys))], [(0, range(keys))])
    if seen is not None:
        seen = seen.expand(*seen.shape[:-2], tokens, keys)
    of_document: dict[int, list] = {}
    for document, at, column in pieces(columns, size):
        of_document.setdefault(document, []).append((at, column))
    for document, rows, row in pieces(queries, size):
        for at, column in of_document.get(document, ()):
            if seen is not None:
                yield rows, at, seen[..., rows, at]
            elif column[-1] <= row[0]:
                yield rows, at, None
            elif column[0] <= row[-1]:
                later, earlier = (
                    torch.arange(one.start, one.stop, one.step, device=q.device)
                    for one in (row, column)
                )
                yield rows, at, later[:, None] >= earlier


def pieces(spans: Iterable[Span], size: int) -> Iterator[tuple[int, slice, range]]:
    """Cut spans into pieces of at most `size`: the document, where it is in its tensor, places."""
    start = 0
    for document, places in spans:
        for first in range(0, len(places), size):
            piece = places[first : first + size]
            yield document, slice(start, start + len(piece)), piece
            start += len(piece)


def blockwise(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: torch.Tensor | None = None,
    size: int = SIZE,
    places: Places | None = None,
) -> torch.Tensor:
    """Compute softmax(q kᵀ / √d) v as (B, H, T, w), `size` queries and keys at a time.

    Args:
        q: (B, H, T, d).
        k, v: (B, K, S, d) and (B, K, S, w); K divides H.
        seen: as for `attention.Core`.
        places: as for `blocks`.
    """
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = (one.repeat_interleave(shared, dim=1) for one in (k, v))
    return Blockwise.apply(q, k, v, seen, size, places)
