"""How far tensors are from the twin's: the farthest element, and all of them together."""

import math

import pytest
import torch

from helpers.training.differences import (
    after_a_step,
    at_the_start,
    distance,
    farthest,
    ratio,
)

ONE, NAN = torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.nan])


def test_the_farthest_element_and_its_tensor():
    theirs = {"a": ONE, "b": ONE, "c": ONE}
    ours = {"a": ONE + 0.5, "b": ONE - torch.tensor([0.0, 3.0]), "c": ONE}
    assert farthest(ours, theirs) == (3.0, "b")
    assert farthest(theirs, theirs) == (0.0, "")


@pytest.mark.parametrize("bad", ["a", "b", "c"])
def test_a_nan_counts_wherever_it_is(bad):
    theirs = {"a": ONE, "b": ONE, "c": ONE}
    ours = {"a": ONE + 0.5, "b": ONE + 7, "c": ONE} | {bad: NAN}
    far, name = farthest(ours, theirs)
    assert math.isnan(far)
    assert name == bad


def test_a_tensor_that_is_missing_or_of_another_shape_is_infinitely_far():
    assert farthest({"a": ONE}, {"a": ONE, "b": ONE}) == (math.inf, "b")
    assert farthest({"a": ONE, "b": ONE}, {"a": ONE}) == (math.inf, "b")
    assert farthest({"a": ONE[:1]}, {"a": ONE}) == (math.inf, "a")
    assert distance({"a": ONE}, {"a": ONE, "b": ONE}) == math.inf
    assert distance({"a": ONE, "b": ONE}, {"a": ONE}) == math.inf


def test_the_distance_of_all_tensors_together():
    theirs = {"a": torch.zeros(2), "b": torch.zeros(1)}
    ours = {"a": torch.tensor([2.0, 1.0]), "b": torch.tensor([2.0])}
    assert distance(ours, theirs) == pytest.approx(3.0)
    assert math.isnan(distance(ours | {"a": NAN}, theirs))


def test_after_a_step_the_parts_are_relative_to_the_twin_s_own():
    """A strategy that has gone half of the twin's way, with three quarters of its loss."""

    class Trained:
        def full_state(self):
            return {"model": {"a": ONE + 1, "b": ONE}}

        def full_gradients(self):
            return {"a": ONE, "b": ONE + 0.25}

    first, theirs = {"a": ONE, "b": ONE}, {"a": ONE + 2, "b": ONE}
    twin = (4.0, {"a": ONE, "b": ONE}, theirs)
    row = after_a_step(3, 5, Trained(), 3.0, first, twin, loaded=True)
    assert (row.rank, row.step, row.loaded) == (3, 5, True)
    assert (row.loss, row.relative_loss) == (1.0, 0.25)
    assert (row.parameter, row.parameter_name, row.relative) == (1.0, "a", 0.5)
    assert (row.gradient, row.gradient_name) == (0.25, "b")
    start = at_the_start(0, Trained(), {"a": ONE + 1, "b": ONE + 1})
    assert (start.step, start.parameter, start.parameter_name) == (-1, 1.0, "b")
    assert start.relative == pytest.approx((2 / 26) ** 0.5)
    assert (start.loss, start.gradient, start.relative_loss, start.loaded) == (0, 0, 0, False)


def test_a_distance_relative_to_the_way():
    assert ratio(1.0, 4.0) == 0.25
    assert ratio(1.0, 0.0) == 0.0
