"""Warm-up, half a cosine, then constant."""

import math

import pytest

from helpers.training.schedule import Cosine


def test_the_corners():
    schedule = Cosine(peak=2.0, steps=101, warmup=10, final=0.1)
    assert schedule(0) == pytest.approx(0.2)
    assert schedule(9) == pytest.approx(2.0)
    assert schedule(10) == pytest.approx(2.0)
    assert schedule(55) == pytest.approx(2.0 * (0.1 + 0.9 / 2))  # halfway down
    assert schedule(100) == schedule(145) == schedule(1000) == pytest.approx(0.2)


def test_it_ends_at_a_tenth_unless_another_end_is_given():
    assert Cosine(peak=2.0, steps=50)(49) == pytest.approx(0.2)
    assert [Cosine(peak=2.0, steps=3, final=end)(2) for end in (0.0, 1.0)] == [0, 2]
    assert Cosine(peak=2.0, steps=1)(0) == 2
    assert Cosine(peak=2.0, steps=2)(1) == pytest.approx(0.2)
    assert Cosine(peak=2.0, steps=3)(1) == pytest.approx(1.1)  # halfway: there is no warm-up
    assert Cosine(peak=0.0, steps=5, warmup=2)(1) == 0  # a rate of 0 is none too small


def test_it_rises_and_then_falls():
    schedule = Cosine(peak=1.0, steps=50, warmup=5)
    rates = [schedule(k) for k in range(50)]
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert all(math.isfinite(rate) and 0 < rate <= 1 for rate in rates)


def test_all_of_it_may_be_warm_up():
    for steps in (2, 3):  # and what follows is constant
        assert [Cosine(peak=1.0, steps=steps, warmup=2)(k) for k in range(5)] == [0.5, *4 * [1.0]]


@pytest.mark.parametrize(
    "wrong",
    [{"peak": -1}, {"final": 2}, {"final": -0.1}, {"warmup": 11}, {"warmup": -1}, {"steps": 0}],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        Cosine(**{"peak": 1.0, "steps": 10, **wrong})
