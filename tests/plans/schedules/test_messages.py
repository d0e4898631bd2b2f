"""Messages match on both sides, receives are posted in time and in the order of the sends."""

from collections import defaultdict
from dataclasses import replace

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
    stuck,
    with_messages,
    zero_bubble_h1,
    zero_bubble_v,
)
from helpers.plans.schedules.action import Schedule
from helpers.plans.schedules.messages import waiting

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


@settings(max_examples=60, deadline=None)
@given(**sizes)
def test_which_schedules_deadlock_with_rendezvous_sends(p, m):
    assert not stuck(naive(p, m))
    assert not stuck(gpipe(p, m))
    assert bool(stuck(one_f_one_b(p, m))) == (p > 1 and m > 1)
    assert not stuck(one_f_one_b(p, m), "fused")
    h1 = zero_bubble_h1(p, p - 1 + m)
    assert bool(stuck(h1)) == (p > 1)
    assert not stuck(h1, "fused")
    assert bool(stuck(zero_bubble_v(p, m), "fused")) == (p > 1 and m > 1)
    assert bool(stuck(interleaved(p, p * m, 2))) == (p > 1)
    assert bool(stuck(interleaved(p, p * m, 2), "fused")) == (p > 1 and m > 1)


def test_a_receive_is_met_by_its_own_sender_alone():
    send, other = Message(SEND, 0, 1, 0, 1), Message(RECEIVE, 0, 1, 0, 2)
    assert waiting([[[send]], [[replace(other, peer=0)]], []]) == {}
    assert waiting([[[send]], [[other]], []]) == {0: (send,), 1: (other,)}


def test_messages_that_wait_are_in_order():
    sends = [Message(SEND, 2, 1, 0, 1), Message(SEND, 0, 1, 3, 1), Message(SEND, 0, 1, 0, 1)]
    assert waiting([[[sends[0]], sends[1:]], []]) == {0: (sends[0],)}
    assert waiting([[sends], [[]]]) == {0: tuple(sends[::-1])}


def test_the_deadlock_of_1f1b_is_the_one_that_megatron_fuses():
    waits = stuck(one_f_one_b(2, 2))
    assert waits == {0: (Message(SEND, 0, 1, 1, 1),), 1: (Message(SEND, 1, 0, 0, 0),)}
    assert [str(message) for own in waits.values() for message in own] == [
        "sends the activation of micro-batch 1 to rank 1",
        "sends the gradient of micro-batch 0 to rank 0",
    ]
    with pytest.raises(ValueError, match="rendezvous, fused"):
        stuck(gpipe(2, 2), "by post")
