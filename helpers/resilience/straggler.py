"""Find the rank that the others wait for, from the times of their calls.

All ranks leave a step together: each waits for the sum of the loss. So the time from there to the
next call is a rank's own. The ledger has it, one ledger a step:

    with ledger() as log:
        strategy.step(batch)
    times.append([entry.at for entry in log.entries])

Clocks of different machines need not agree: each time counts from a rank's own start of the step.

The ledger sees when a call begins, not when it ends. A step that waits in the middle (ZeRO's stage
3, a pipeline) shows only the part of a delay that comes before its most uneven call.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

Times = Sequence[Sequence[float]]  # for each step, for each of its calls: seconds since its start


@dataclass(frozen=True)
class Slow:
    """A rank that is late.

    Attributes:
        rank: its number.
        late: in how many of the steps it was the last.
        steps: how many steps there are.
        share: by how much it is slower than the median of the others, in the median step.
        chance: that equal ranks look so uneven; at most.
    """

    rank: int
    late: int
    steps: int
    share: float
    chance: float


def straggler(ranks: Sequence[Times], alarms: float = 1e-3, least: float = 0.1) -> Slow | None:
    """Name the rank that is the last too often; None if chance explains it.

    In each step, the call whose starts differ most decides which rank is the last. If all ranks are
    equally fast, and steps independent, a rank is the last in one of N steps, so the number of its
    steps is binomial. N ranks have N chances to look slow. (Ranks on a busy machine are slow for
    several steps in a row; then `alarms` is too optimistic, and only `least` protects.)

    Args:
        ranks: of each rank, as many steps, with as many calls in a step.
        alarms: the chance of naming a rank although all are equal; at most.
        least: a rank that is less slower than this share is not named.

    Raises:
        ValueError: there is one rank only, or the ranks' steps or calls differ in number.
    """
    if len(ranks) < 2:
        raise ValueError("one rank alone is never late: pass the times of several")
    uneven = [
        max(zip(*step, strict=True), key=lambda starts: max(starts) - min(starts))
        for step in zip(*ranks, strict=True)
    ]
    last = Counter(max(range(len(ranks)), key=starts.__getitem__) for starts in uneven)
    [(rank, late)] = last.most_common(1)
    chance = len(ranks) * tail(late, len(uneven), 1 / len(ranks))
    others = [median([*starts[:rank], *starts[rank + 1 :]]) for starts in uneven]
    share = median(starts[rank] / most for starts, most in zip(uneven, others, strict=True)) - 1
    found = Slow(rank, late, len(uneven), share, min(1.0, chance))
    return found if chance <= alarms and share >= least else None


def tail(least: int, tries: int, p: float) -> float:
    """The chance of `least` or more successes in so many tries."""
    each = (math.comb(tries, k) * p**k * (1 - p) ** (tries - k) for k in range(least, tries + 1))
    return sum(each)
