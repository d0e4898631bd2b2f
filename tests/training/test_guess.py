"""The signs of well-known mistakes, in numbers alone."""

from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.training.guess import apart, guess, missing_sum, unseen

THEIRS = torch.tensor([1.0, -2.0, 3.0])


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1 / 4, "a quarter of the twin's. Is a sum over tp missing"),
        (1 / 2, "half the twin's. Is a sum over dp missing"),
        (4, "4 times the twin's. Is it summed over tp twice"),
        (-1, "the opposite sign"),
        (0.3, "0.3 times the twin's. Is it divided by another count"),
        (0.2501, "0.2501 times the twin's. Is it divided by another count"),  # near is not equal
        (3.9, "3.9 times the twin's. Is it divided by another count"),
        (torch.inf, "not finite"),
        (torch.nan, "not finite"),
        (0, "detached"),
    ],
)
def test_a_multiple_of_the_twin_s(factor, said):
    found = guess(THEIRS * factor, THEIRS, Layout(dp=2, tp=4), "backward")
    assert said in found


def test_what_is_no_multiple_has_no_guess():
    look = partial(guess, theirs=THEIRS, layout=Layout(dp=2, tp=4))
    assert look(THEIRS + torch.tensor([0.0, 0.0, 1.0]), kind="backward") == ""
    assert look(THEIRS / 4, kind="start") == ""
    assert look(THEIRS, theirs=0 * THEIRS, kind="backward") == ""
    assert "0.25 times the twin's. Does the learning rate" in look(THEIRS / 4, kind="update")
    assert "Does `load` restore" in look(THEIRS * 0, kind="moments")
    assert "Does the optimizer have these parameters" in look(THEIRS * 0, kind="update")
    for kind in ("moments", "loss"):
        assert look(THEIRS / 4, kind=kind) == ""
    assert guess(THEIRS, THEIRS * 0, Layout(dp=2), "backward") == ""  # of zero there is no multiple


def test_shares_have_names():
    for size, said in ((3, "a third of the twin's"), (5, "1/5 of the twin's")):
        found = guess(THEIRS / size, THEIRS, Layout(dp=size), "gradient")
        assert found.startswith(f"It is {said}. Is a sum over dp missing")
        assert f"divided by {size} twice" in found
        found = guess(THEIRS * size, THEIRS, Layout(dp=size), "gradient")
        assert found.startswith(f"It is {size} times the twin's. Is it summed over dp twice")


def test_a_sum_is_missing_where_the_ranks_add_up_to_the_twin_s():
    every = [THEIRS - 1, torch.ones(3)]
    assert "Is a sum over dp missing" in missing_sum(every, THEIRS, 0, Layout(dp=2))
    assert missing_sum([THEIRS, THEIRS], THEIRS, 0, Layout(dp=2)) == ""
    # equal shares may be a division too many: `guess` names both
    assert missing_sum([THEIRS / 2, THEIRS / 2], THEIRS, 0, Layout(dp=2)) == ""
    every = [THEIRS - 1, None, torch.ones(3), None]  # two of them have no part in it
    assert "Is a sum over dp missing" in missing_sum(every, THEIRS, 0, Layout(dp=2, tp=2))
    assert missing_sum([THEIRS - 1, None], THEIRS, 0, Layout(dp=2)) == ""
    own = [THEIRS - 3, torch.ones(3), 2 * torch.ones(3)]  # of ranks 3, 4 and 5: one group of tp
    every = [THEIRS, THEIRS + 1, -THEIRS, *own]
    assert "Is a sum over tp missing" in missing_sum(every, THEIRS, 4, Layout(dp=2, tp=3))
    assert missing_sum(every, THEIRS, 1, Layout(dp=2, tp=3)) == ""


def test_who_is_apart():
    layout, one = Layout(dp=2, tp=2), torch.ones(3)
    assert apart([one, one, one, one], 0, layout) == ""
    assert "ranks 0 and 1 drift apart: along tp" in apart([one, 2 * one, None, None], 0, layout)
    assert "ranks 0 and 2 drift apart: along dp" in apart([one, one, 2 * one, one], 0, layout)
    assert apart([one, None, None, None], 0, layout) == ""
    assert apart([one, one + 1e-3, one, one], 0, layout) != ""
    for size in (1e-9, 1e9):  # relative to the tensor
        assert apart([size * one, size * (one + 1e-3), None, None], 0, layout) != ""
        assert apart([size * one, size * (one + 1e-9), None, None], 0, layout) == ""


def test_sequences_that_no_rank_has():
    numbers = torch.arange(12)
    assert "3, 11 of the batch" in unseen(numbers, [numbers[:3], numbers[4:11]])
    assert "0, 1, 2, 3, 4, 5, 6, 7 … of the batch" in unseen(numbers, [numbers[9:]])
    assert "0, 1, 2, 3, 4, 5, 6, 7 of the batch" in unseen(numbers, [numbers[8:]])
    assert "divided by all targets" in unseen(numbers, [numbers[6:], numbers[:6]])


def test_an_axis_of_one_rank_has_no_sum_to_forget():
    found = guess(THEIRS * (1 + 1e-7), THEIRS, Layout(dp=1, tp=4), "backward")
    assert found.startswith("It is 1 times the twin's. Is it divided by another count")
