"""Requests that arrive at random: a Poisson process, with prompts and answers of random lengths.

A **Poisson process** is what many users who do not know of each other make: in every short time
there is the same small chance of an arrival, so the gaps are exponential. A **geometric** length is
what an answer has that ends after each token with the same chance.
"""

from collections.abc import Sequence

import numpy as np

from helpers.inference.engine.request import Request
from helpers.inference.sampling import Sampling


def poisson(
    rate: float,
    requests: int,
    seed: int,
    *,
    prompt: tuple[int, int] = (16, 64),
    new_tokens: float = 64.0,
    most: int = 256,
    vocab: int = 256,
    texts: Sequence[Sequence[int]] = (),
    sampling: Sampling | None = None,
) -> list[Request]:
    """Make requests 0, 1, …, in order of arrival.

    The gaps' random numbers do not depend on the rate: at twice the rate the same requests come in
    half the time.

    Args:
        rate: arrivals a second on average; inf: all at 0.
        requests: how many.
        seed: of all random numbers. A request's own seed is its number.
        prompt: the shortest and the longest prompt, in tokens; every length between is as likely.
        new_tokens: the mean of the geometric number of new tokens, before it is cut to `most`.
        most: the most new tokens.
        vocab: V; a prompt's tokens are drawn from 0 … V-1.
        texts: prompts to choose from, instead of random tokens; their lengths count then.

    Raises:
        ValueError: a number is out of its range.
    """
    low, high = prompt
    if not rate > 0:
        raise ValueError(f"a rate of {rate} arrivals a second; it must be positive")
    if requests < 0 or not 1 <= low <= high:
        raise ValueError(f"{requests} requests with prompts of {low} to {high} tokens; cannot be")
    if new_tokens < 1 or most < 1:
        raise ValueError(
            f"new tokens with a mean of {new_tokens} and at most {most}; both must be 1 or more"
        )
    gaps, lengths, words = (np.random.default_rng([seed, use]) for use in range(3))
    arrivals = np.cumsum(gaps.exponential(size=requests)) / rate
    longs = np.minimum(lengths.geometric(1 / new_tokens, size=requests), most)
    if texts:
        prompts = [texts[n] for n in words.integers(len(texts), size=requests)]
    else:
        sizes = words.integers(low, high + 1, size=requests)
        prompts = [words.integers(vocab, size=size).tolist() for size in sizes]
    return [
        Request(number, prompts[number], int(longs[number]), float(arrivals[number]), **chosen)
        for chosen in [{} if sampling is None else {"sampling": sampling}]
        for number in range(requests)
    ]
