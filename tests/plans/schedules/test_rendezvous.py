"""Which schedules deadlock if a send waits for its receive."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plans.schedules import (
    RECEIVE,
    SEND,
    Message,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    stuck,
    zero_bubble_h1,
    zero_bubble_v,
)
from helpers.plans.schedules.rendezvous import waiting

sizes = {"p": st.integers(1, 5), "m": st.integers(1, 7)}


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
