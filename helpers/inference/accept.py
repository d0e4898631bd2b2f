"""Speculative decoding's arithmetic: accept or reject guesses, so that the target's law remains.

g  guesses        V  different tokens        p  the target's probabilities        q  the draft's

Source: Leviathan, Kalman and Matias 2023, "Fast inference from transformers via speculative
decoding", ICML: algorithm 1; sections 3.1 to 3.3 for the expectations.
"""

from collections.abc import Sequence

import torch


def decide(
    p: torch.Tensor, q: torch.Tensor, guesses: Sequence[int], draws: Sequence[float]
) -> tuple[int, torch.Tensor]:
    """Accept guesses from the first on, until one is rejected.

    A guess x is accepted with the probability min(1, p(x)/q(x)).

    Args:
        p: (g + 1, V), after the tokens so far and 0, 1, … g guesses.
        q: (g, V), from which the guesses were drawn.
        guesses: g tokens.
        draws: g uniform numbers in [0, 1).

    Returns:
        How many guesses are accepted, and the probabilities (V,) of the token after them: the
        residual after a rejection, else the target's own.
    """
    for place, (token, draw) in enumerate(zip(guesses, draws, strict=True)):
        if draw * q[place, token] >= p[place, token]:
            return place, residual(p[place], q[place])
    return len(guesses), p[len(guesses)]


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Compute the probabilities after a rejection: max(0, p - q), renormalised. Shapes (…, V).

    A rejected guess was a token with q > p. The residual has exactly what the accepted guesses
    leave of p. Where p = q no guess is ever rejected; the result is p.
    """
    rest = (p - q).clamp(min=0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, p)


def tokens_per_round(a: float, guesses: int) -> float:
    """Expect (1 - a^(g+1)) / (1 - a) tokens from one forward of the target (equation 1).

    Each guess is accepted with the probability a, independently of the others. One token always
    comes from the target.
    """
    return sum(a**accepted for accepted in range(guesses + 1))
