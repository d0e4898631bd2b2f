"""The zero-bubble schedules: their orders, and their paper's bubble and memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.plans.schedules import (
    Costs,
    ScheduleError,
    bubble,
    check,
    in_flight,
    one_f_one_b,
    timeline,
    zero_bubble_h1,
    zero_bubble_v,
)
from tests.plans.schedules.small import grid, idle, length, micros, quick, ranks, words


def test_the_orders_as_the_paper_draws_them():
    assert grid(zero_bubble_h1(2, 3)) == [
        "F0 F1 I0 W0 F2 I1 W1 I2 W2",
        "F0 I0 F1 I1 W0 F2 I2 W1 W2",
    ]
    assert [zero_bubble_h1(2, 2).name, zero_bubble_v(2, 2).name] == ["ZB-H1", "ZB-V"]


def test_a_v_of_two_ranks():
    """With too few micro-batches to fill it, and with enough. PyTorch's ZB-V has these orders."""
    assert [words(order) for order in zero_bubble_v(2, 3).orders] == [
        "F0@0 F1@0 F2@0 F0@3 I0@3 W0@3 F1@3 I1@3 W1@3 I0@0 W0@0 F2@3 I2@3 W2@3 I1@0 W1@0 I2@0 W2@0",
        "F0@1 F0@2 F1@1 F1@2 I0@2 W0@2 F2@1 I0@1 W0@1 F2@2 I1@2 W1@2 I1@1 I2@2 I2@1 W1@1 W2@2 W2@1",
    ]
    assert [words(order) for order in zero_bubble_v(2, 5).orders] == [
        "F0@0 F1@0 F2@0 F0@3 I0@3 W0@3 F1@3 I1@3 W1@3 F3@0 I0@0 W0@0 F2@3 I2@3 W2@3 "
        "F4@0 I1@0 W1@0 F3@3 I3@3 W3@3 I2@0 W2@0 F4@3 I4@3 W4@3 I3@0 W3@0 I4@0 W4@0",
        "F0@1 F0@2 F1@1 F1@2 I0@2 W0@2 F2@1 I0@1 W0@1 F2@2 I1@2 W1@2 F3@1 I1@1 W1@1 "
        "F3@2 I2@2 W2@2 F4@1 I2@1 W2@1 F4@2 I3@2 W3@2 I3@1 I4@2 I4@1 W3@1 W4@2 W4@1",
    ]


@quick
@given(ranks, st.integers(0, 12), length, length, length)
def test_zb_h1(p, more, forward, gradient, weight):
    costs = Costs(forward=forward, input=gradient, weight=weight)
    schedule = zero_bubble_h1(p, p + more)
    found = bubble(timeline(check(schedule), costs))
    if weight <= min(gradient, forward):
        assert found.idle == (p - 1) * (forward + gradient - weight)
    elif weight <= gradient:
        assert found.idle == (p - 1) * gradient
    assert found.idle >= (p - 1) * max(gradient, forward + gradient - weight)
    # A rank keeps what 1F1B's first rank keeps, and the bubble of 1F1B is never smaller.
    assert max(in_flight(schedule)) == p
    assert found.idle <= idle(one_f_one_b(p, p + more), costs)


def test_zb_h1_wants_p_micro_batches():
    with pytest.raises(ScheduleError, match="at least 4"):
        zero_bubble_h1(4, 3)


@quick
@given(ranks, micros, st.integers(1, 9))
def test_zb_v(p, m, unit):
    schedule = check(zero_bubble_v(p, m))
    assert schedule.placement == (*range(p), *reversed(range(p)))
    assert max(in_flight(schedule)) <= 2 * p  # of 2 p stages: p micro-batches of a rank's work
    found = bubble(timeline(schedule, Costs(forward=unit, input=unit, weight=unit)))
    if m >= 2 * p - 1:
        # Zero within each rank's span; the ranks begin one stage after another.
        assert found.in_span == 0
        assert found.idle == (p - 1) * unit


@pytest.mark.parametrize(("p", "m"), [(2, 1), (3, 3), (4, 5), (8, 10)])
def test_zb_v_with_few_micro_batches_is_that_of_many_without_the_others(p, m):
    """As PyTorch makes it: `test_torch` has the comparison."""
    many = zero_bubble_v(p, 2 * p - 1).orders
    kept = tuple(tuple(action for action in order if action.micro < m) for order in many)
    assert zero_bubble_v(p, m).orders == kept


@pytest.mark.parametrize("make", [zero_bubble_h1, zero_bubble_v])
@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 3)])
def test_sizes_below_one(make, sizes):
    with pytest.raises(ScheduleError, match="one or more"):
        make(*sizes)
