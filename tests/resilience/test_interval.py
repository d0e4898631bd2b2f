"""The interval between checkpoints: Daly's published figures, and faults drawn at random."""

import math

import pytest

from helpers.resilience import interval
from helpers.resilience.faults import poisson
from helpers.resilience.replay import replay

MINUTE = 60.0


@pytest.mark.parametrize(
    ("between", "minutes"), [(24 * 60 * MINUTE, 117), (6 * 60 * MINUTE, 57), (15 * MINUTE, 9.1)]
)
def test_dalys_published_intervals(between, minutes):
    """Daly 2006, captions of figures 3 to 5: C = 5 minutes."""
    digits = 1 if minutes < 10 else 0
    assert round(interval.daly(5 * MINUTE, between) / MINUTE, digits) == minutes
    # the exact interval is the limit of Daly's series
    assert interval.optimal(5 * MINUTE, between) == pytest.approx(
        interval.daly(5 * MINUTE, between), rel=0.005
    )


def test_youngs_interval_is_the_limit_of_short_checkpoints():
    assert interval.young(2.0, 100.0) == 20.0
    for write in (1e-2, 1e-4, 1e-6):
        ratio = interval.optimal(write, 1.0) / interval.young(write, 1.0)
        assert abs(ratio - 1) < math.sqrt(write)


def test_a_long_checkpoint_has_dalys_bound():
    assert interval.daly(20.0, 10.0) == 10.0
    assert interval.daly(19.9, 10.0) < 10.0


@pytest.mark.parametrize("write", [0.01, 0.3, 2.0, 10.0])
def test_no_other_interval_has_a_higher_goodput(write):
    best = interval.optimal(write, 7.0)
    top = interval.goodput(best, write, 7.0, restart=1.0)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert interval.goodput(best * factor, write, 7.0, restart=1.0) < top


def test_the_expected_time_is_that_of_random_faults():
    every, write, between, restart = 3.0, 0.5, 10.0, 1.0
    outcome = replay(
        poisson(between, 200_000, seed=1), 200_000, every=every, write=write, restart=restart
    )
    expected = interval.goodput(every, write, between, restart)
    assert outcome.goodput == pytest.approx(expected, rel=0.01)
    assert expected < 0.99 * interval.goodput(every, write, between)  # the restart is in it


def test_hopeless_plans_have_no_goodput():
    assert interval.goodput(1e6, 60.0, 1000.0) == 0
    assert interval.goodput(10.0, 60.0, 1.0, restart=1e6) == 0


def test_a_thousand_gpus_fail_a_thousand_times_as_often():
    assert interval.mean_between(1000, 5e6) == 5e3


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_what_is_not_positive_is_refused(value):
    for call in (interval.young, interval.daly, interval.optimal):
        with pytest.raises(ValueError, match="write is to be positive"):
            call(value, 1.0)
        with pytest.raises(ValueError, match="between is to be positive"):
            call(1.0, value)
    with pytest.raises(ValueError, match="every is to be positive"):
        interval.expected_seconds(value, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"restart is to be 0 or more"):
        interval.expected_seconds(1.0, 1.0, 1.0, restart=value or -1.0)
    with pytest.raises(ValueError, match="gpus is to be positive"):
        interval.mean_between(value, 1.0)
