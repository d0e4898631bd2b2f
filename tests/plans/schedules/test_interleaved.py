"""Interleaved 1F1B: its order, and its papers' bubble and memory."""

import pytest
from hypothesis import given
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
from tests.plans.schedules.small import length, quick, words


def test_the_order_as_the_paper_draws_it():
    """Rank 0 of 2 ranks with 2 stages each: micro-batches 0, 1 through stage 0, then through 2.

    PyTorch's schedule of the same name has these orders, too.
    """
    two, three = interleaved(2, 4, 2), interleaved(3, 3, 2)
    assert two.name == "interleaved 1F1B"
    assert two.placement == (0, 1, 0, 1)
    assert [words(order) for order in two.orders] == [
        "F0@0 F1@0 F0@2 F1@2 F2@0 B0@2 F3@0 B1@2 F2@2 B0@0 F3@2 B1@0 B2@2 B3@2 B2@0 B3@0",
        "F0@1 F1@1 F0@3 B0@3 F1@3 B1@3 F2@1 B0@1 F3@1 B1@1 F2@3 B2@3 F3@3 B3@3 B2@1 B3@1",
    ]
    assert [words(order) for order in three.orders] == [
        "F0@0 F1@0 F2@0 F0@3 F1@3 F2@3 B0@3 B1@3 B2@3 B0@0 B1@0 B2@0",
        "F0@1 F1@1 F2@1 F0@4 F1@4 F2@4 B0@4 B1@4 B2@4 B0@1 B1@1 B2@1",
        "F0@2 F1@2 F2@2 F0@5 B0@5 F1@5 B1@5 F2@5 B2@5 B0@2 B1@2 B2@2",
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
