"""From a wrong step or a wrong norm of ZeRO stage 1 to a hint."""

import inspect

import pytest

from helpers.check.week06 import stage_1
from helpers.check.week06.stage_1_hints import NORMS, STEPS, hint_failure, hint_norm, hint_step

GENERAL = "Go through one step for two ranks on paper"


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("nothing", "are what they were. Does the optimizer update a tensor of its own"),
        ("not gathered", "brings the updated shards to every rank"),
        ("divided twice", "The mean is taken twice"),
        ("the sum", "a sum over the ranks. One process takes their mean"),
        ("the sum, clipped as the mean", "a sum over the ranks. One process takes their mean"),
        ("the sum, not clipped", "a sum over the ranks. One process takes their mean"),
        ("own", "its own gradient alone"),
        ("own, not clipped", "its own gradient alone"),
        ("own, each its shard", "its own gradient alone"),
        ("own, each its shard, divided", "its own gradient alone"),
        ("not clipped", "The gradient is not clipped"),
        ("clipped by shards", "All ranks need one norm"),
        ("clipped by shards, padding too", "All ranks need one norm"),
        ("padding", "The padding is counted in the norm"),
        ("the sum of norms", "Norms of shards do not add up"),
        ("the norm of the sum", "Of which gradient is the norm to be at most max_norm"),
        ("always scaled", "Which gradients must stay as they are"),
        ("the square", "divided by the square of the norm"),
        ("each number", "One factor must scale all of its numbers"),
        ("a new optimizer", "How often is make_optimizer called"),
        ("added up", "What must happen to .grad between two steps"),
        ("not a number", "nothing but padding: its norm is 0"),
        ("something else", GENERAL),
    ],
)
def test_the_hint_for_a_step(kind, hint):
    assert hint in hint_step(kind)


def test_each_kind_that_is_named_has_a_hint():
    source = inspect.getsource(stage_1.kind_of)
    assert all(f'"{kind}"' in source for kind in STEPS)


# All different; the shard's own is none of them.
KNOWN = {
    "right": 5.0,
    "with padding": 7.0,
    "divided twice": 5 / 3,
    "of the sum": 15.0,
    "the sum of norms": 6.5,
    "after clipping": 1.0,
    "squared": 25.0,
}


@pytest.mark.parametrize(
    ("norm", "hint"),
    [
        ("NoneType", "of the whole gradient before clipping, as a number"),
        (3.25, "norm of this rank's shard. What must be added up"),
        (7.0, "The padding is counted in the norm"),
        (5 / 3, "The mean is taken twice"),
        (15.0, "That is the norm of the sum over the ranks"),
        (6.5, "Norms of shards do not add up"),
        (1.0, "Return the norm before clipping"),
        (25.0, "That is the square of the norm"),
        (8.0, "The norm is the root of the sum of all squares"),
        (5.0, "The norm is the root of the sum of all squares"),
    ],
)
def test_the_hint_for_a_norm(norm, hint):
    assert hint in hint_norm(norm, KNOWN, 3.25)
    if norm == norm and not isinstance(norm, str):  # to nine digits
        assert hint in hint_norm(norm * (1 + 9e-10), KNOWN, 3.25)
        assert "root of the sum of all squares" in hint_norm(norm * (1 + 2e-9), KNOWN, 3.25)
    assert {*NORMS} == {*KNOWN} - {"right"}


def test_a_shard_of_padding_alone_has_a_norm_of_zero():
    assert "norm of this rank's shard" in hint_norm(0.0, KNOWN, 0.0)
    assert "norm of this rank's shard" in hint_norm(9e-10, KNOWN, 0.0)
    assert "root of the sum of all squares" in hint_norm(2e-9, KNOWN, 0.0)


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("a leaf Variable that requires grad is used in place", "under torch.no_grad()"),
        ("ValueError: can't optimize a non-leaf Tensor", "clone, detach?"),
        ("with 2 ranks: a hang: …", "Do all ranks call the same collectives"),
        ("rank 1 gave no sign of life for 40 s", "Do all ranks call the same collectives"),
        ("rank 3 was ended by SIGABRT", "Are all shards of one size?"),
    ],
)
def test_the_hint_for_a_failure(finding, hint):
    assert hint in hint_failure(finding)
    assert hint_failure("KeyError: 'norm'") == ""
