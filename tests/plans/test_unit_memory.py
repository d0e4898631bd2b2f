"""The moments of a step add up; tests of `FullyShard` compare the peak with the measured one."""

import pytest

from helpers.plans.unit_memory import Moment, moments, peak


def test_one_unit():
    """States are 3/N of the model; then the gradients and their buffer, and the shard."""
    top = peak([100.0], 4)
    assert top.name == "reduce of unit 0"
    assert top.total == 3 * 25 + 100 + 100 + 25


def test_many_units():
    """In the backward: parameters, gradients, the next unit's buffer, the last unit's buffer."""
    top = peak([10.0] * 5, 2, optimizer=0)
    assert top.name == "backward of unit 1"
    assert top.total == 25 + 3 * 5 + 4 * 10


def test_unequal_units():
    top = peak([1.0, 100.0, 1.0], 2, optimizer=0)
    assert top.name == "reduce of unit 1"
    assert top.total == 51 + 0.5 + 1 + 100 + 150


def test_of_equal_moments_the_first_is_the_peak():
    assert peak([0, 0], 2) == moments([0, 0], 2)[0]


def test_every_moment_by_hand():
    """Units of 9, 30 and 3 bytes on 3 ranks, Adam: the shards are 3 times 42/3 = 42 bytes."""
    assert moments([9, 30, 3], 3) == [
        Moment(name="gather of unit 0", states=42, gathered=9, fetched=9),
        Moment(name="forward of unit 0", states=42, gathered=9, fetched=9),
        Moment(name="gather of unit 1", states=42, gathered=30, fetched=30),
        Moment(name="forward of unit 1", states=42, gathered=30, fetched=30),
        Moment(name="gather of unit 2", states=42, gathered=3, fetched=3),
        Moment(name="forward of unit 2", states=42, gathered=3, fetched=3),
        Moment(name="backward of unit 2", states=42, gathered=3, fetched=30, gradients=3),
        Moment(name="reduce of unit 2", states=42, fetched=30, gradients=3, sending=4),
        Moment(
            name="backward of unit 1", states=43, gathered=30, fetched=9, gradients=30, sending=3
        ),
        Moment(name="reduce of unit 1", states=43, fetched=9, gradients=30, sending=40),
        Moment(name="backward of unit 0", states=53, gathered=9, gradients=9, sending=30),
        Moment(name="reduce of unit 0", states=53, gradients=9, sending=12),
    ]


def test_refused():
    for units, ranks in (([1.0], 1), ([], 2)):
        with pytest.raises(ValueError, match=f"{len(units)} units on {ranks} ranks: name a unit"):
            moments(units, ranks)
