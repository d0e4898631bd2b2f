"""Ring attention: keys and values travel around the ring while each rank computes.

In each of N steps a rank lets its queries read the keys and values of one rank, and passes them on
at the same time. What it has read so far, y and L, stays: blocks merge exactly (`blockwise`). So a
rank needs two buffers, each for one part of the keys, and no message depends on the computation.

The backward sends keys and values around once more. The gradients of a part follow it, one step
behind, and collect what each rank adds. The part's own rank adds its share at home, so the
gradients travel N - 1 times, too.

    step     0          1              2                       …    N - 1
    here     own        left's         left's left's                right's
    sends    own, k v   those          those, and gradients         gradients, home

With grouped queries, the K heads of keys and values travel, not the H of the queries.

Sources: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
arXiv:2310.01889; Dao et al. 2022, FlashAttention, for the backward from L.

B  sequences     t  tokens of this rank's part      H  heads of queries, K of keys and values
N  ranks         s  of another rank's part          d  width of queries and keys, w of values
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch.autograd.function import once_differentiable

from helpers.comm.messages import Peers, in_a_row
from helpers.models.blockwise import SIZE, add_gradients, blocks, nothing, read
from helpers.plans.sequence_order import Documents, Part, length, spans


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    parts: Sequence[Part],
    peers: Peers,
    size: int = SIZE,
    documents: Documents = (),
) -> torch.Tensor:
    """Compute this rank's part of causal attention over the whole sequence: (B, H, t, w).

    All ranks call it, and all ranks run the backward, or none.

    Args:
        q: (B, H, t, d).
        k, v: (B, K, t, d) and (B, K, t, w); K divides H.
        parts: of all ranks, as an order of `sequence_order` makes them. They may have different
            lengths, also 0.
        peers: the ranks that share the sequence.
        size: of a block, in queries and in keys.
        documents: the lengths of those that the sequences pack; no token sees another's.
    """
    shared = q.unflatten(1, (k.shape[1], -1))  # (B, K, H/K, t, d)
    of = parts, [spans(part, documents) for part in parts], peers, size
    return _Ring.apply(shared, k.unsqueeze(2), v.unsqueeze(2), *of).flatten(1, 2)


class _Ring(torch.autograd.Function):
    """With q (B, K, H/K, t, d), k and v (B, K, 1, t, …): queries of a group share a key's head."""

    @staticmethod
    def forward(ctx, q, k, v, parts, cut, peers, size):
        y, total = nothing(q, v)
        for source, row in travelling(k, v, parts, peers):
            keys, values = unpacked(row, k, v, length(parts[source]))
            places = cut[peers.rank], cut[source]
            read(y, total, q, keys, values, blocks(q, keys, None, size, places))
        y = y.to(q.dtype)
        ctx.save_for_backward(q, k, v, y, total)
        ctx.parts, ctx.cut, ctx.peers, ctx.size = parts, cut, peers, size
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, y, total = ctx.saved_tensors
        parts, peers = ctx.parts, ctx.peers
        inner = (grad * y).to(total.dtype).sum(-1)
        of_q, home, behind = torch.zeros_like(q), None, None
        for source, row in travelling(k, v, parts, peers):
            own = torch.zeros_like(row)
            works, came = pass_on(behind, own, peers) if behind is not None else ([], None)
            tokens = length(parts[source])
            keys, values = unpacked(row, k, v, tokens)
            found = of_q, *unpacked(own, k, v, tokens)
            places = ctx.cut[peers.rank], ctx.cut[source]
            here = blocks(q, keys, None, ctx.size, places)
            add_gradients(found, grad, q, keys, values, total, inner, here)
            finish(works)
            if home is None:
                home = own
            else:
                behind = own if came is None else came.add_(own)
        if behind is not None:
            works, came = pass_on(behind, home, peers)
            finish(works)
            home += came
        return of_q, *unpacked(home, k, v, k.shape[-2]), None, None, None, None


def travelling(
    k: torch.Tensor, v: torch.Tensor, parts: Sequence[Part], peers: Peers
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield each rank, and its keys and values in a row: this rank's first, then to the left.

    While the caller computes with a row, the row goes to the right, and the next one comes.
    """
    each = sum(math.prod(one.shape[:-2]) * one.shape[-1] for one in (k, v))  # numbers of a token
    numbers = [each * length(part) for part in parts]
    here, there = k.new_empty(2, max(numbers))
    torch.cat([in_a_row(k), in_a_row(v)], out=here[: numbers[peers.rank]])  # one message
    for step in range(peers.size):
        source, works = (peers.rank - step) % peers.size, []
        row, coming = here[: numbers[source]], there[: numbers[source - 1]]
        if step < peers.size - 1:
            works = peers.begin(row, peers.right, coming, peers.left)
        yield source, row
        finish(works)
        here, there = there, here


def pass_on(row: torch.Tensor, like: torch.Tensor, peers: Peers):
    """Start to send a row to the right, and to receive one like `like` from the left."""
    came = torch.empty_like(like)
    return peers.begin(row, peers.right, came, peers.left), came


def finish(works):
    for work in works:
        work.wait()


def unpacked(row: torch.Tensor, k, v, tokens: int) -> list[torch.Tensor]:
    """The keys and values of so many tokens in a row, as views; other sizes as of k and v."""
    shapes = [(*one.shape[:-2], tokens, one.shape[-1]) for one in (k, v)]
    numbers = [math.prod(shape) for shape in shapes]
    return [part.view(shape) for part, shape in zip(row.split(numbers), shapes, strict=True)]
