"""Zero bubble: the backward in two parts, I and W, so that W fills the idle time.

Another rank waits for the input's gradient (I) only. The gradient of the weights (W) may be
computed at any later time.

Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, sections 2, 4 and 6.
"""

from collections import Counter
from collections.abc import Iterable

from helpers.plans.schedules.action import (
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Schedule,
    ScheduleError,
    enough,
    folded,
    straight,
)


def zero_bubble_h1(ranks: int, micro_batches: int) -> Schedule:
    """ZB-H1: 1F1B with the backward in two parts, within the memory of 1F1B's first rank.

    Rank r computes a W after r more backwards, so every rank keeps at most p micro-batches. The
    bubble is (p - 1)(F + I - W), by the paper's table 2, if W is no longer than I and than F. With
    a longer W than F it is (p - 1) I: until the first gradient reaches rank 0, rank 0 has nothing
    else to compute within its memory.

    Raises:
        ScheduleError: m is less than p.
    """
    enough(ranks=ranks, micro_batches=micro_batches)
    if micro_batches < ranks:
        raise ScheduleError(
            f"ZB-H1 with {micro_batches} micro-batches on {ranks} ranks: its warm-up needs at "
            f"least {ranks} micro-batches"
        )
    orders = []
    for rank in range(ranks):
        forward, grad, weight = ((kind, rank) for kind in (FORWARD, INPUT, WEIGHT))
        warm = ranks - 1 - rank
        order = [forward] * warm
        for done in range(micro_batches):
            if done < micro_batches - warm:
                order.append(forward)
            order.append(grad)
            if done >= rank:
                order.append(weight)
        orders.append(numbered([*order, *[weight] * rank], micro_batches))
    return Schedule("ZB-H1", straight(ranks), micro_batches, tuple(orders))


def zero_bubble_v(ranks: int, micro_batches: int) -> Schedule:
    """ZB-V: two stages a rank, in a V: rank 0 has the first stage and the last.

    If F, I and W take equally long and m is at least 2 p - 1, no rank idles between its first and
    its last computation. The ranks still begin and end at different times. So the step has no
    bubble only if a rank may update its weights before the others are done. A global norm or an
    overflow is then checked afterwards (the paper's section 4, post-validation).

    A rank keeps at most 2 p activations of half a rank each: as much as rank 0 of 1F1B.
    """
    enough(ranks=ranks, micro_batches=micro_batches)
    # The order is made for as many micro-batches as fill the pipeline; the surplus is left out.
    full = max(micro_batches, 2 * ranks - 1)
    orders = (numbered(_v(rank, ranks, full), micro_batches) for rank in range(ranks))
    return Schedule("ZB-V", folded(ranks), micro_batches, tuple(orders))


def _v(rank: int, ranks: int, micro_batches: int) -> list[tuple[str, int]]:
    """(kind, stage) of each computation of a rank, in order."""
    down, up = rank, 2 * ranks - 1 - rank
    f0, i0, w0 = ((kind, down) for kind in (FORWARD, INPUT, WEIGHT))
    f1, i1, w1 = ((kind, up) for kind in (FORWARD, INPUT, WEIGHT))
    below = ranks - rank  # the ranks from here to the turn of the V
    order = [f0] * (2 * below - 1) + [f1, f0] * rank + [f1, i1, w1] * below
    left = micro_batches - order.count(f0)
    for turn in range(micro_batches - ranks):
        order += [f0] * (turn < left) + [i0, w0, f1, i1, w1]
    return order + [i0, i1] * rank + [i0, w0] * below + [w1] * rank + [w0] * rank


def numbered(order: Iterable[tuple[str, int]], micro_batches: int) -> tuple[Action, ...]:
    """Give each (kind, stage) its micro-batches in turn: 0, 1, 2, …; leave out those from m on."""
    seen: Counter = Counter()
    found = []
    for kind, stage in order:
        if seen[kind, stage] < micro_batches:
            found.append(Action(kind, stage, seen[kind, stage]))
        seen[kind, stage] += 1
    return tuple(found)
