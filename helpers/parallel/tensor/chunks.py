"""Asynchronous sequence parallelism: messages and matrix products in chunks, side by side.

An all-gather and the product that uses its result are cut into chunks of tokens. While one chunk
is multiplied, the next is on its way. A product and its reduce-scatter likewise, the other way
round. The bytes stay the same; there are more messages.

Sources: Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition in
Large Deep Learning Models", ASPLOS; Korthikanti et al. 2022 overlap only the backward.

B  sequences        T  tokens of a sequence        t  tokens on a rank, T/N        D  width
"""

from collections.abc import Callable, Iterator

import torch

from helpers.comm.regions import TOKENS, gathered, sum_scattered
from helpers.comm.transport import GroupTransport
from helpers.data.batch import part


def pieces(tokens: int, chunks: int) -> list[slice]:
    """The chunks of a rank's t tokens: as equal as possible, none of them empty."""
    chunks = max(1, min(chunks, tokens))
    return [part(tokens, index, chunks) for index in range(chunks)]


def arriving(
    shard: torch.Tensor, transport: GroupTransport, chunks: int
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Gather (B, t, D) in chunks: yield each chunk of all ranks, (B, N c, D), as it arrives.

    All chunks are on their way from the beginning.
    """
    places = pieces(shard.shape[TOKENS], chunks)
    coming = [gathered(shard[:, place], transport) for place in places]
    yield from ((place, work.wait()) for place, work in zip(places, coming, strict=True))


def spread(every: torch.Tensor, whole: torch.Tensor, place: slice, ranks: int):
    """Write a gathered chunk (B, N c, …) to its tokens in the whole (B, T, …)."""
    whole.unflatten(TOKENS, (ranks, -1))[:, :, place] = every.unflatten(TOKENS, (ranks, -1))


def gather_and_multiply(
    shard: torch.Tensor,
    transport: GroupTransport,
    chunks: int,
    products: Callable[[torch.Tensor], list[torch.Tensor]],
    keep: bool,
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """The whole input, if it is kept, and `products` of it, computed chunk by chunk.

    Args:
        shard: (B, t, D).
        products: (B, n, D) to several (B, n, F).
    """
    whole, outputs, ranks = None, [], transport.size
    tokens = ranks * shard.shape[TOKENS]
    for place, chunk in arriving(shard, transport, chunks):
        made = products(chunk)
        if not outputs:
            size = (shard.shape[0], tokens)
            outputs = [one.new_empty(*size, one.shape[-1]) for one in made]
            whole = shard.new_empty(*size, shard.shape[-1]) if keep else None
        for output, one in zip(outputs, made, strict=True):
            spread(one, output, place, ranks)
        if keep:
            spread(chunk, whole, place, ranks)
    return whole, outputs


def multiply_and_scatter(
    inputs: list[torch.Tensor],
    transport: GroupTransport,
    chunks: int,
    product: Callable[[list[torch.Tensor]], torch.Tensor],
) -> torch.Tensor:
    """Partial sums of all ranks, (B, T, D), computed chunk by chunk, summed and cut: (B, t, D).

    Args:
        inputs: tensors (B, T, F).
        product: chunks of the inputs, (B, n, F), to their partial sums (B, n, D).
    """
    ranks = transport.size
    cut = [one.unflatten(TOKENS, (ranks, -1)) for one in inputs]  # (B, N, t, F)
    coming = [
        sum_scattered(
            product([one[:, :, place].flatten(TOKENS, TOKENS + 1) for one in cut]), transport
        )
        for place in pieces(cut[0].shape[TOKENS + 1], chunks)
    ]
    return torch.cat([work.wait() for work in coming], TOKENS)
