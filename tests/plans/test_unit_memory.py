"""The moments of a step add up; tests of `FullyShard` compare the peak with the measured one."""

import pytest

from helpers.plans.unit_memory import moments, peak


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


def test_the_moments_in_order():
    names = [moment.name for moment in moments([1, 1], 2)]
    assert names == [
        "gather of unit 0", "forward of unit 0", "gather of unit 1", "forward of unit 1",
        "backward of unit 1", "reduce of unit 1", "backward of unit 0", "reduce of unit 0",
    ]  # fmt: skip


def test_refused():
    with pytest.raises(ValueError, match="at least 2 ranks"):
        moments([1.0], 1)
    with pytest.raises(ValueError, match="name a unit"):
        moments([], 2)
