"""Choose the next token from logits: the best one, or at random.

B  sequences in a batch        V  different tokens
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from helpers.models.dropout import counter

BITS = 53  # of a float64's fraction


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose a token. The default is greedy: the token with the largest logit.

    The three apply in this order. Each one renormalises what is left.

    Attributes:
        temperature: divides the logits; 0 is greedy.
        top_k: keep the k most likely tokens; None: all.
        top_p: keep the most likely tokens until their probabilities sum to p at least (Holtzman et
            al. 2020, section 3.1). The most likely token always stays, so 0 is greedy. None: all.

    Of equally likely tokens at the edge, those of the smaller numbers stay.

    Raises:
        ValueError: a value out of its range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(
                f"temperature must be 0 (greedy) or a positive number, not {self.temperature!r}"
            )
        if self.top_k is not None and (not isinstance(self.top_k, int) or self.top_k < 1):
            raise ValueError(f"top_k must be a whole number from 1, or None, not {self.top_k!r}")
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p must be in [0, 1], or None, not {self.top_p!r}")

    @property
    def greedy(self) -> bool:
        """Whether only the most likely token can be chosen."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0


class NotANumber(ArithmeticError):
    """Some logits are NaN, or infinitely large, or all tokens are impossible.

    Attributes:
        sequences: the numbers of these sequences in the batch.
    """

    text = (
        "the logits of the next token are NaN or infinite: look for NaN in the weights, or for "
        "numbers beyond the range of the dtype"
    )

    def __init__(self, sequences: Sequence[int]):
        self.sequences = list(sequences)
        names = ", ".join(map(str, self.sequences))
        super().__init__(f"sequence {names} of the batch: {self.text}")


def are_numbers(logits: torch.Tensor) -> torch.Tensor:
    """Say of which sequences a token can be chosen: (B,) bool from (B, V).

    A logit of -∞ excludes its token, and is fine as long as another token is left.
    """
    return logits.amax(-1).isfinite()  # the maximum of NaN and others is NaN


def check_numbers(logits: torch.Tensor):
    """Raise NotANumber if a sequence has logits from which no token can be chosen."""
    broken = ~are_numbers(logits)
    if broken.any():
        raise NotANumber(broken.nonzero()[:, 0].tolist())


def probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Compute the probability of each token to be chosen: (B, V) float64 from (B, V).

    Raises:
        NotANumber: no token can be chosen for a sequence.
    """
    check_numbers(logits)
    if sampling.greedy:
        best = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
        return best.scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    logits = logits.double()
    # The largest becomes 0 first: a small temperature cannot make it infinite.
    weights = ((logits - logits.amax(-1, keepdim=True)) / sampling.temperature).softmax(-1)
    limited = sampling.top_k is not None and sampling.top_k < logits.shape[-1]
    nucleus = sampling.top_p is not None and sampling.top_p < 1
    if not limited and not nucleus:
        return weights
    weights, order = weights.sort(dim=-1, descending=True, stable=True)
    if limited:
        weights[:, sampling.top_k :] = 0
        weights /= weights.sum(-1, keepdim=True)
    if nucleus:
        before = weights.cumsum(-1) - weights
        before[:, 0] = -1  # the most likely token always stays
        weights = weights.where(before < sampling.top_p, 0)
        weights /= weights.sum(-1, keepdim=True)
    return torch.zeros_like(weights).scatter_(-1, order, weights)


def choose(
    logits: torch.Tensor,
    samplings: Sampling | Sequence[Sampling],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> torch.Tensor:
    """Choose a token for each sequence: (B,) int64 from (B, V).

    Args:
        samplings: one for all, or one for each sequence.
        seeds: of each sequence.
        positions: the place in its sequence that each chosen token gets. With the seed it
            determines the random number; the other sequences do not matter.

    Raises:
        NotANumber: no token can be chosen for a sequence.
        ValueError: not one sampling, seed and position for each sequence.
    """
    rows = len(logits)
    each = [samplings] * rows if isinstance(samplings, Sampling) else list(samplings)
    if not len(each) == len(seeds) == len(positions) == rows:
        raise ValueError(
            f"{rows} sequences, but {len(each)} samplings, {len(seeds)} seeds and "
            f"{len(positions)} positions"
        )
    check_numbers(logits)
    chosen = logits.argmax(-1)
    groups: dict[Sampling, list[int]] = {}
    for row, sampling in enumerate(each):
        if not sampling.greedy:
            groups.setdefault(sampling, []).append(row)
    for sampling, some in groups.items():
        draws = [uniform(seeds[row], positions[row]) for row in some]
        chosen[some] = pick(probabilities(logits[some], sampling), draws)
    return chosen


def pick(weights: torch.Tensor, draws: Sequence[float]) -> torch.Tensor:
    """Pick a token per row by inverting the cumulative distribution: (B,) int64.

    Args:
        weights: (B, V) float64, not negative, with a positive sum; they need not sum to 1.
        draws: B uniform numbers in [0, 1).
    """
    cumulated = weights.cumsum(-1)
    total = cumulated[:, -1:].contiguous()
    at = torch.tensor(draws, dtype=torch.float64, device=weights.device)[:, None] * total
    token = torch.searchsorted(cumulated, at, right=True)  # the first token beyond `at`
    last = torch.searchsorted(cumulated, total)  # rounding can bring `at` up to the total
    return token.minimum(last)[:, 0]


def uniform(seed: int, position: int, use: int = 0) -> float:
    """Draw a number, uniform in [0, 1), with 53 bits: a function of its arguments alone.

    A generator's numbers would depend on the order of the draws, and so on the other requests of a
    batch. So a request gets the same tokens alone and in any batch.

    Args:
        seed: the request's.
        position: the place in the sequence of the token that the number decides on.
        use: tells apart several numbers for one place.
    """
    high, low = (counter(seed, position, use, half) for half in (0, 1))  # 32 bits each
    return (high << BITS - 32 | low >> 64 - BITS) / 2**BITS
