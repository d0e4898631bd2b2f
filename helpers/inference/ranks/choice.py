"""Choose the next token of logits that are cut by vocabulary, the same on every rank.

B  sequences        V  vocabulary        N  ranks; each has the logits of up to ceil(V/N) tokens

Each rank gets the same numbers from the same message, and chooses by the same rule. So all ranks
choose the same token, and no rank has to announce its choice.
"""

import torch

from helpers.comm.transport import GroupTransport
from helpers.inference.sampling import check_numbers

NO_TOKEN = -1.0


def best_token(logits: torch.Tensor, start: int, transport: GroupTransport) -> torch.Tensor:
    """Choose each sequence's token with the largest logit: (B,) int64. The lowest token wins a tie.

    A rank sends its best logit and that token: 16 bytes per sequence, whatever V is.

    Args:
        logits: (B, this rank's share of V), of the tokens from `start` on. A rank may have none.
        start: the token of the first logit.

    Raises:
        NotANumber: no token can be chosen for a sequence. Every rank raises it.
    """
    own = torch.full((len(logits), 2), -torch.inf, dtype=torch.float64, device=logits.device)
    own[:, 1] = NO_TOKEN
    if logits.shape[1]:
        place = first_largest(logits)  # NaN counts as the largest
        own[:, 0] = logits.gather(1, place[:, None])[:, 0]
        own[:, 1] = place + start
    every = gather(own, transport)  # (N, B, 2)
    values, tokens = every[..., 0].T, every[..., 1].T  # (B, N)
    winner = first_largest(values)[:, None]  # lower ranks have lower tokens
    check_numbers(values.gather(1, winner))
    return tokens.gather(1, winner)[:, 0].long()


def all_logits(logits: torch.Tensor, vocab: int, transport: GroupTransport) -> torch.Tensor:
    """Gather the logits of every token: (B, V), on every rank.

    A rank sends its share of V per sequence. Sampling needs this; a greedy choice does not.

    Args:
        logits: (B, this rank's share). Rank r has the tokens after those of rank r - 1.
        vocab: V. The shares are as equal as possible, and the first are the larger ones.
    """
    size = -(-vocab // transport.size)
    own = logits.new_full((len(logits), size), -torch.inf)  # shards of one size
    own[:, : logits.shape[1]] = logits
    every = gather(own, transport)  # (N, B, ceil(V/N))
    sizes = [(vocab + rank) // transport.size for rank in reversed(range(transport.size))]
    return torch.cat([shard[:, :n] for shard, n in zip(every, sizes, strict=True)], 1)


def gather(own: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    """Gather each rank's contiguous tensor: (N, …)."""
    if transport.size == 1 or not own.numel():
        return own.expand(transport.size, *own.shape)
    every = own.new_empty(transport.size, *own.shape)
    transport.all_gather(every, own).wait()
    return every


def first_largest(values: torch.Tensor) -> torch.Tensor:
    """The index of each row's largest number, (B,). The first of equal ones; NaN is the largest."""
    largest = values.amax(1, keepdim=True)  # NaN, if there is one
    same = (values == largest) | values.isnan()
    return same.to(torch.int8).argmax(1)
