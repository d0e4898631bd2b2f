"""A schedule that cannot run is refused, with the first thing that is wrong."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plans.schedules import (
    Action,
    Schedule,
    ScheduleError,
    check,
    gpipe,
    one_f_one_b,
    zero_bubble_h1,
)
from helpers.plans.schedules.validity import run


def changed(schedule, rank, order):
    """The schedule with another order on one rank: a list of (kind, stage, micro)."""
    orders = list(schedule.orders)
    orders[rank] = tuple(Action(*each) for each in order)
    return replace(schedule, orders=tuple(orders))


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ([("F", 1, 0), ("X", 1, 0)], "rank 1, place 1: no kind 'X'"),
        ([("F", 2, 0)], "the stages are 0 to 1"),
        ([("F", -1, 0)], "the stages are 0 to 1"),
        ([("F", 1, 2)], "rank 1, place 0: F2 of stage 1, but the micro-batches are 0 to 1"),
        ([("F", 1, -1)], "the micro-batches are 0 to 1"),
        ([("F", 0, 0)], "stage 0 is on rank 0"),
        ([("F", 1, 0), ("F", 1, 0)], "computes F0 of stage 1 more than once"),
        ([("F", 1, 0), ("B", 1, 0), ("B", 1, 1)], "never computes F1 of stage 1"),
        ([("F", 1, 0), ("B", 1, 0), ("F", 1, 1)], "never computes B1 of stage 1"),
        ([("F", 1, 0), ("I", 1, 0), ("F", 1, 1), ("B", 1, 1)], "never computes W0 of stage 1"),
        ([("F", 1, 0), ("W", 1, 0), ("F", 1, 1), ("B", 1, 1)], "never computes I0 of stage 1"),
        (
            [("F", 1, 0), ("B", 1, 0), ("W", 1, 0), ("F", 1, 1), ("B", 1, 1)],
            "also a part of it",
        ),
        (
            [("F", 1, 0), ("I", 1, 0), ("B", 1, 0), ("F", 1, 1), ("B", 1, 1)],
            "rank 1 has a whole backward B0 of stage 1 and also a part of it",
        ),
        (
            [("F", 1, 0), ("I", 1, 0), ("W", 1, 0), ("F", 1, 1), ("B", 1, 1), ("W", 1, 0)],
            "computes W0 of stage 1 more than once",
        ),
        (
            [("B", 1, 0), ("F", 1, 0), ("F", 1, 1), ("B", 1, 1)],
            "rank 1 computes B0 of stage 1 before F0 of stage 1",
        ),
        (
            [("F", 1, 0), ("W", 1, 0), ("I", 1, 0), ("F", 1, 1), ("B", 1, 1)],
            "rank 1 computes W0 of stage 1 before I0 of stage 1",
        ),
    ],
)
def test_the_first_reason(order, reason):
    with pytest.raises(ScheduleError, match=reason):
        check(changed(gpipe(2, 2), 1, order))


def test_a_deadlock_names_what_each_rank_waits_for():
    crossed = changed(one_f_one_b(2, 2), 0, [("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("B", 0, 1)])
    check(crossed)  # slow, but no deadlock
    turned = changed(crossed, 1, [("F", 1, 1), ("B", 1, 1), ("F", 1, 0), ("B", 1, 0)])
    with pytest.raises(ScheduleError) as error:
        check(turned)
    assert str(error.value) == (
        "deadlock: rank 0 waits before B0 of stage 0 for B0 of stage 1; "
        "rank 1 waits before F1 of stage 1 for F1 of stage 0"
    )


def test_whole_and_split_backwards_may_be_mixed():
    mixed = changed(
        gpipe(2, 2),
        1,
        [("F", 1, 0), ("F", 1, 1), ("I", 1, 0), ("B", 1, 1), ("W", 1, 0)],
    )
    assert check(mixed) is mixed


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 3), st.integers(1, 3))
def test_against_every_order_by_hand(random, p, m):
    """Shuffled orders run exactly if repeated passes by a plain rule finish them."""
    orders = []
    for order in zero_bubble_h1(p, max(m, p)).orders:
        mine = list(order)
        for _ in range(random.randint(0, 3)):
            k = random.randrange(max(len(mine) - 1, 1))
            mine[k : k + 2] = mine[k : k + 2][::-1]
        orders.append(mine)
    schedule = Schedule("shuffled", tuple(range(p)), max(m, p), tuple(map(tuple, orders)))
    left, done = [list(order) for order in orders], set()
    while True:
        ready = [rank for rank in range(p) if left[rank] and is_ready(left[rank][0], done, p)]
        if not ready:
            break
        rank = random.choice(ready)
        done.add(left[rank].pop(0))
    if any(left):
        with pytest.raises(ScheduleError):
            check(schedule)
    else:
        assert len(run(check(schedule))) == len(done)


def is_ready(action, done, p):
    kind, stage, micro = action.kind, action.stage, action.micro
    if kind == "F":
        return stage == 0 or Action("F", stage - 1, micro) in done
    if kind == "W":
        return Action("I", stage, micro) in done
    above = stage == p - 1 or Action("I", stage + 1, micro) in done
    return above and Action("F", stage, micro) in done
