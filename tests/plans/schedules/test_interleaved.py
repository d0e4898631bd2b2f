"""Interleaved 1F1B: its order, and its papers' bubble and memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plans.schedules import (
    Costs,
    ScheduleError,
    bubble,
    check,
    in_flight_share,
    interleaved,
    one_f_one_b,
    timeline,
)

length = st.integers(1, 9)
quick = settings(max_examples=60, deadline=None)


def test_the_order_as_the_paper_draws_it():
    """Rank 0 of 2 ranks with 2 stages each: micro-batches 0, 1 through stage 0, then through 2."""
    first = interleaved(2, 4, 2).orders[0]
    assert [(a.kind, a.stage, a.micro) for a in first[:8]] == [
        ("F", 0, 0),
        ("F", 0, 1),
        ("F", 2, 0),
        ("F", 2, 1),
        ("F", 0, 2),
        ("B", 2, 0),
        ("F", 0, 3),
        ("B", 2, 1),
    ]


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


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 2), (2, 2, 0)])
def test_sizes_below_one(sizes):
    with pytest.raises(ScheduleError, match="one or more"):
        interleaved(*sizes)
