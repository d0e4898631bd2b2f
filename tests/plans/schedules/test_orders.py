"""The orders, the bubble and the memory of each schedule, as their papers have them.

`test_torch` has the orders of PyTorch's own.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.plans.schedules import (
    Costs,
    ScheduleError,
    bubble,
    check,
    gpipe,
    in_flight,
    in_flight_share,
    interleaved,
    naive,
    one_at_a_time,
    one_f_one_b,
    over_ideal,
    over_total,
    stuck,
    timeline,
    zero_bubble_h1,
    zero_bubble_v,
)
from tests.plans.schedules.small import grid, idle, length, micros, quick, ranks


def test_the_orders_as_the_papers_draw_them():
    assert grid(naive(2, 2)) == ["F0 B0 F1 B1"] * 2
    assert grid(gpipe(2, 3)) == ["F0 F1 F2 B0 B1 B2"] * 2
    assert grid(one_f_one_b(3, 4)) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    assert grid(naive(3)) == ["F0 B0"] * 3
    assert [make(2, 2).name for make in (naive, gpipe, one_f_one_b)] == ["naive", "GPipe", "1F1B"]


@quick
@given(ranks, micros, length, length)
def test_naive_gpipe_and_1f1b(p, m, forward, backward):
    costs = Costs(forward=forward, backward=backward)
    both = forward + backward
    assert idle(naive(p, m), costs) == (p - 1) * m * both
    assert idle(gpipe(p, m), costs) == (p - 1) * both
    assert idle(one_f_one_b(p, m), costs) == (p - 1) * both
    assert in_flight(naive(p, m)) == (1,) * p
    assert in_flight(gpipe(p, m)) == (m,) * p
    assert in_flight(one_f_one_b(p, m)) == tuple(min(p - rank, m) for rank in range(p))


@pytest.mark.parametrize(
    "schedule",
    [gpipe(3, 4), one_f_one_b(4, 6), interleaved(2, 4, chunks=3), zero_bubble_h1(3, 5),
     zero_bubble_v(3, 6)],
    ids=lambda schedule: schedule.name,
)  # fmt: skip
def test_one_at_a_time_computes_the_same_and_never_two_micro_batches(schedule):
    slow = check(one_at_a_time(schedule))
    assert (slow.placement, slow.split) == (schedule.placement, schedule.split)
    assert list(map(sorted, slow.orders)) == list(map(sorted, schedule.orders))
    assert max(in_flight(slow)) == len(schedule.placement) // schedule.ranks
    assert not stuck(slow)
    assert grid(one_at_a_time(one_f_one_b(2, 2))) == grid(naive(2, 2))


# Published, from (p - 1)/m and (p - 1)/(m + p - 1): p, m, over the ideal, over the total time.
PUBLISHED = [
    (2, 1, 1.0, 0.5),
    (2, 8, 0.125, 0.1111111111111111),
    (4, 1, 3.0, 0.75),
    (4, 8, 0.375, 0.2727272727272727),
    (4, 32, 0.09375, 0.08571428571428572),
    (8, 4, 1.75, 0.6363636363636364),
    (8, 64, 0.109375, 0.09859154929577464),
    (16, 16, 0.9375, 0.4838709677419355),
    (32, 8, 3.875, 0.7948717948717948),
    (32, 128, 0.2421875, 0.1949685534591195),
]


@pytest.mark.parametrize(("p", "m", "ideal", "total"), PUBLISHED)
def test_the_published_bubble_in_both_conventions(p, m, ideal, total):
    for schedule in (gpipe(p, m), one_f_one_b(p, m)):
        found = bubble(timeline(schedule))
        assert found.over_ideal == pytest.approx(ideal, abs=1e-12)
        assert found.over_total == pytest.approx(total, abs=1e-12)
    assert over_total(ideal) == pytest.approx(total, abs=1e-12)
    assert over_ideal(total) == pytest.approx(ideal, abs=1e-12)


@quick
@given(st.integers(1, 6), st.integers(1, 3), st.integers(2, 4), length, length)
def test_interleaved(p, groups, v, forward, backward):
    schedule = interleaved(p, p * groups, v)
    costs = Costs(forward=forward, backward=backward).divided(v)
    found = bubble(timeline(check(schedule), costs))
    assert found.over_ideal == pytest.approx((p - 1) / (v * p * groups), abs=1e-12)
    # Korthikanti et al. 2022, 4.2.3: the first rank keeps 1 + (p - 1)/(p v) times as much as 1F1B.
    most = p * (1 + (p - 1) / (p * v))
    shares = in_flight_share(schedule)
    assert max(shares) == shares[0] <= most + 1e-12
    if groups > 1:  # else there are too few micro-batches to fill it
        assert shares[0] == pytest.approx(most)


def test_one_chunk_is_1f1b():
    assert interleaved(3, 6, 1) == one_f_one_b(3, 6)


@pytest.mark.parametrize("sizes", [(4, 6, 2), (4, 3, 2)])
def test_it_needs_groups_of_p(sizes):
    with pytest.raises(ScheduleError, match="multiple of 4"):
        interleaved(*sizes)


def test_the_order_of_zb_h1_as_the_paper_draws_it():
    assert grid(zero_bubble_h1(2, 3)) == [
        "F0 F1 I0 W0 F2 I1 W1 I2 W2",
        "F0 I0 F1 I1 W0 F2 I2 W1 W2",
    ]
    assert [zero_bubble_h1(2, 2).name, zero_bubble_v(2, 2).name] == ["ZB-H1", "ZB-V"]


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


@pytest.mark.parametrize("make", [naive, gpipe, one_f_one_b, zero_bubble_h1, zero_bubble_v])
@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 3)])
def test_sizes_below_one(make, sizes):
    with pytest.raises(ScheduleError, match="one or more"):
        make(*sizes)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 2), (2, 2, 0)])
def test_sizes_below_one_of_interleaving(sizes):
    with pytest.raises(ScheduleError, match="one or more"):
        interleaved(*sizes)
