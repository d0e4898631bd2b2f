"""Ours against a peer: blocks in turn, ratios of pairs, and how sure they are."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """How many times as long as ours a peer takes: the median over the pairs, and its interval."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self):
        return f"{short(self.median)}× ({short(self.low)} to {short(self.high)})"


def in_turn(
    contenders: Mapping[str, Callable[[], float | None]], rounds: int
) -> dict[str, list[float | None]]:
    """Measure every contender once a round, so that a drift of the machine hits all alike.

    Each round begins with another, so that none always follows the same one.

    Args:
        contenders: do the work once and return the seconds it took; None if it did not end.
    """
    names = list(contenders)
    samples: dict[str, list[float | None]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(contenders[name]())
    return samples


def median(samples: Sequence[float | None]) -> float | None:
    """Of those that ended; None if none did."""
    ended = [s for s in samples if s is not None]
    return statistics.median(ended) if ended else None


def ratio(
    ours: Sequence[float | None], peer: Sequence[float | None], confidence: float = CONFIDENCE
) -> Ratio | None:
    """The median of `peer[i] / ours[i]`, with a bootstrap interval (percentiles).

    Each pair was measured in one round, so that what slows the machine in that round cancels.
    Pairs in which one did not end are left out.

    Raises:
        ValueError: the two do not have as many rounds, or a time is not positive.
    """
    if len(ours) != len(peer):
        raise ValueError(f"{len(ours)} rounds of ours, {len(peer)} of the peer")
    pairs = [(a, b) for a, b in zip(ours, peer, strict=True) if a is not None and b is not None]
    if any(a <= 0 or b <= 0 for a, b in pairs):
        raise ValueError("times must be positive")
    if not pairs:
        return None
    ratios = np.array([b / a for a, b in pairs])
    picks = np.random.default_rng(0).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    medians = np.median(ratios[picks], axis=1)
    low, high = np.quantile(medians, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Ratio(float(np.median(ratios)), float(low), float(high), len(pairs))


def short(value: float) -> str:
    """Two digits: 0.12, 1.2, 12, 120."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def duration(seconds: float | None) -> str:
    """Seconds in words: 8.1 ms, 54 ms, 1.31 s, 12 s."""
    if seconds is None:
        return "never"
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
