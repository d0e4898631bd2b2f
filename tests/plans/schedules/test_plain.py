"""The schedules with one stage a rank: their orders, and their papers' bubble and memory."""

import pytest
from hypothesis import given

from helpers.plans.schedules import (
    Costs,
    ScheduleError,
    bubble,
    gpipe,
    in_flight,
    naive,
    one_f_one_b,
    over_ideal,
    over_total,
    timeline,
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


@pytest.mark.parametrize("make", [naive, gpipe, one_f_one_b])
@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 3)])
def test_sizes_below_one(make, sizes):
    with pytest.raises(ScheduleError, match="one or more"):
        make(*sizes)
