"""Attention on a cut sequence by collectives: heads for tokens (Ulysses), or gathered keys.

    Ulysses     an all-to-all gives each rank all tokens of H/N heads. Attention then needs no
                message, and an all-to-all brings the results back.
    gathered    every rank gets all keys and values, and computes for its own queries.
    USP         on two axes: Ulysses within a group of U ranks, and a ring of N/U such groups.

Ring attention needs the memory of two parts of the keys, and hides its messages behind products.
Ulysses sends least, and needs as many heads as ranks. To gather needs the memory of all keys, and
waits for one message that nothing hides; with few key heads that is little. USP takes Ulysses as
far as the heads go, or the fast links, and lets the ring go on from there with fewer steps.

Sources: Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv:2309.14509; Llama 3, arXiv:2407.21783,
section 3.3.2, gathers; Fang and Zhao 2024, "USP: A Unified Sequence Parallelism Approach for Long
Context Generative AI", arXiv:2405.07719.

B  sequences     t  tokens of this rank's part      H  heads of queries, K of keys and values
N  ranks         T  tokens of all parts             d  width of queries and keys, w of values
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from helpers.comm.messages import Peers
from helpers.comm.regions import gather_from, pair
from helpers.comm.transport import GroupTransport
from helpers.models.blockwise import SIZE, blockwise
from helpers.parallel.cut_sequence.ring import ring_attention
from helpers.plans.sequence_order import Documents, Part, length, spans


def ulysses(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    parts: Sequence[Part],
    transport: GroupTransport,
    size: int = SIZE,
    documents: Documents = (),
) -> torch.Tensor:
    """Compute as `ring_attention`, with each rank's share of the heads.

    Raises:
        ValueError: the ranks do not divide the heads of keys and values.
    """
    places = spans([piece for part in parts for piece in part], documents)
    attend = partial(blockwise, size=size, places=(places, places))
    return by_heads(attend, q, k, v, parts, transport)


@dataclass(frozen=True)
class Grid:
    """Ranks that share a sequence, on two axes: the ranks of `heads` are neighbours in its order.

    Attributes:
        ring: the ranks with the same heads.
        heads: the ranks that exchange tokens for heads; these need the faster links.
    """

    ring: Peers
    heads: GroupTransport

    @property
    def rank(self) -> int:
        return self.ring.rank * self.heads.size + self.heads.rank

    @property
    def size(self) -> int:
        return self.ring.size * self.heads.size


def usp(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    parts: Sequence[Part],
    grid: Grid,
    size: int = SIZE,
    documents: Documents = (),
) -> torch.Tensor:
    """Compute as `ring_attention`: the tokens of one group of `grid.heads` travel around a ring.

    Raises:
        ValueError: the ranks of `grid.heads` do not divide the heads of keys and values.
    """
    inside = grid.heads.size
    groups = [parts[first : first + inside] for first in range(0, len(parts), inside)]
    joined = [tuple(piece for part in group for piece in part) for group in groups]
    of = {"parts": joined, "peers": grid.ring, "size": size, "documents": documents}
    attend = partial(ring_attention, **of)
    return by_heads(attend, q, k, v, groups[grid.ring.rank], grid.heads)


def by_heads(
    attend: Callable[..., torch.Tensor], q, k, v, parts: Sequence[Part], transport: GroupTransport
) -> torch.Tensor:
    """Let `attend` see the tokens of all these ranks, and this rank's share of the heads."""
    if k.shape[1] % transport.size:
        raise ValueError(
            f"{k.shape[1]} heads of keys and values do not divide over {transport.size} ranks: "
            "use ring attention, or fewer ranks along cp"
        )
    lengths = [length(part) for part in parts]
    gather, back = partial(all_tokens, lengths), partial(all_heads, lengths)
    q, k, v = (pair(gather, x, transport, gather, back) for x in (q, k, v))  # (B, H/N, T, d)
    return pair(back, attend(q, k, v), transport, back, gather)


def all_tokens(lengths: Sequence[int], x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    """All heads of some tokens (B, H, t, d) to some heads of all tokens (B, H/N, T, d)."""
    sent = x.detach().unflatten(1, (transport.size, -1)).movedim(1, 0).contiguous()
    shapes = [(*sent.shape[1:3], tokens, sent.shape[-1]) for tokens in lengths]
    numbers = [math.prod(shape) for shape in shapes]
    row = sent.new_empty(sum(numbers))
    transport.all_to_all(row, sent, (numbers, [sent[0].numel()] * transport.size)).wait()
    came = zip(row.split(numbers), shapes, strict=True)
    return torch.cat([part.view(shape) for part, shape in came], 2)


def all_heads(lengths: Sequence[int], x: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    """Some heads of all tokens (B, H/N, T, d) to all heads of some tokens (B, H, t, d)."""
    cut = x.detach().split(list(lengths), 2)
    sent = torch.cat([part.reshape(-1) for part in cut])
    came = sent.new_empty(transport.size, *cut[transport.rank].shape)
    sizes = [came[0].numel()] * transport.size, [part.numel() for part in cut]
    transport.all_to_all(came, sent, sizes).wait()
    return came.movedim(0, 1).flatten(1, 2)


def gathered_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    parts: Sequence[Part],
    transport: GroupTransport,
    size: int = SIZE,
    documents: Documents = (),
) -> torch.Tensor:
    """Compute as `ring_attention`, with all keys and values on every rank."""
    lengths = [length(part) for part in parts]
    whole, most = sum(lengths), max(lengths)
    both = torch.cat([k, v], -1).transpose(1, 2)  # (B, t, K, d + w): one message
    both = functional.pad(both, (0, 0, 0, 0, 0, most - both.shape[1]))  # shards have one size
    every = gather_from(both, transport).transpose(1, 2)  # (B, K, N most, d + w)
    k, v = every.split([k.shape[-1], v.shape[-1]], -1)
    places = [  # padding is behind the sequence, where no query looks
        piece
        for part, tokens in zip(parts, lengths, strict=True)
        for piece in (*part, range(whole, whole + most - tokens))
    ]
    own = parts[transport.rank]
    return blockwise(q, k, v, size=size, places=(spans(own, documents), spans(places, documents)))
