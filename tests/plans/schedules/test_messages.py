"""Messages match on both sides, receives are posted in time and in the order of the sends."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plans.schedules import (
    RECEIVE,
    SEND,
    Action,
    Message,
    ScheduleError,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    with_messages,
    zero_bubble_h1,
    zero_bubble_v,
)
from helpers.plans.schedules.action import Schedule

MAKE = {
    "naive": naive,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": lambda p, m: interleaved(p, p * m, 2),
    "ZB-H1": lambda p, m: zero_bubble_h1(p, p - 1 + m),
    "ZB-V": zero_bubble_v,
}
sizes = {"p": st.integers(1, 5), "m": st.integers(1, 7)}


def test_two_ranks_by_hand():
    first, second = with_messages(one_f_one_b(2, 1))
    assert first == (
        Message(RECEIVE, 1, 0, 0, 1),
        Action("F", 0, 0),
        Message(SEND, 0, 1, 0, 1),
        Action("B", 0, 0),
    )
    assert second == (
        Message(RECEIVE, 0, 1, 0, 0),
        Action("F", 1, 0),
        Action("B", 1, 0),
        Message(SEND, 1, 0, 0, 0),
    )


@settings(max_examples=80, deadline=None)
@given(name=st.sampled_from(sorted(MAKE)), ahead=st.integers(0, 3), **sizes)
def test_messages(name, ahead, p, m):
    schedule = MAKE[name](p, m)
    steps = with_messages(schedule, ahead=ahead)
    posts, sends = defaultdict(list), defaultdict(list)
    for rank, own in enumerate(steps):
        assert tuple(s for s in own if isinstance(s, Action)) == schedule.orders[rank]
        full = set()
        for place, step in enumerate(own):
            if isinstance(step, Message):
                half = step.source, step.target, step.micro
                if step.kind == RECEIVE:
                    posts[step.peer, rank].append(half)
                    full.add(half)
                    assert schedule.placement[step.target] == rank
                    assert schedule.placement[step.source] == step.peer != rank
                else:
                    sends[rank, step.peer].append(half)
                    made = own[place - 1]  # the computation whose output it is
                    assert (made.stage, made.micro) == (step.source, step.micro)
                    assert made.kind in ("F" if step.forward else "BI")
            elif step.kind != "W":
                source = step.stage + (-1 if step.kind == "F" else 1)
                inside = 0 <= source < schedule.stages
                if inside and schedule.placement[source] != rank:
                    assert (source, step.stage, step.micro) in full  # posted before it is needed
    assert posts == sends  # on each channel, in one order
    crossings = sum(
        a != b for a, b in zip(schedule.placement, schedule.placement[1:], strict=False)
    )
    assert sum(map(len, sends.values())) == 2 * crossings * schedule.micro_batches


def test_receives_are_posted_early():
    """Rank 0 of 1F1B: with `ahead` computations between the post and the need."""
    for ahead in (0, 1, 2):
        own = with_messages(one_f_one_b(2, 4), ahead=ahead)[0]
        for place, step in enumerate(own):
            if isinstance(step, Message) and step.kind == RECEIVE:
                needs = own.index(Action("B", 0, step.micro))
                between = sum(isinstance(s, Action) for s in own[place:needs])
                assert between == ahead


def test_interleaving_sends_v_times_as_much():
    """Narayanan et al. 2021, section 2.2.2: the communication also increases by v."""

    def count(schedule):
        return sum(isinstance(s, Message) and s.kind == SEND for s in with_messages(schedule)[1])

    assert count(interleaved(4, 8, 3)) == 3 * count(one_f_one_b(4, 8))


def test_a_schedule_that_cannot_run_has_no_messages():
    order = (Action("B", 0, 0), Action("F", 0, 0))
    with pytest.raises(ScheduleError, match="before"):
        with_messages(Schedule("mine", (0,), 1, (order,)))
