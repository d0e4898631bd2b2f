"""The operator: the solution passes; each common mistake gets its own hint."""

import pytest
import torch

from helpers import check
from helpers.check.week10.combine import WRONG
from notebooks.solutions import week10
from tests.check.asked import asked, drawn_anew


def test_the_solution_passes():
    verdict = check.combine(week10.combine)
    assert verdict, verdict


def test_the_stub_is_told_apart():
    def stub(earlier, later):
        raise NotImplementedError

    assert check.combine(stub).status == "not written yet"


def test_other_ways_to_write_it_pass():
    assert check.combine(
        lambda one, two: [two[0] * one[0], torch.addcmul(two[1], *two[:1], one[1])]
    )


@pytest.mark.parametrize(("rule", "hint"), WRONG, ids=range(len(WRONG)))
def test_each_mistake_is_told(rule, hint):
    verdict = check.combine(lambda one, two: rule(*one, *two))
    assert verdict.status == "wrong"
    assert verdict.hint == hint
    assert "returned (" in verdict.finding


@pytest.mark.parametrize("place", [0, 1])
def test_digits_of_float32_are_too_few(place):
    def rounded(one, two):
        pair = list(week10.combine(one, two))
        pair[place] = pair[place] * (1 + 1e-8)
        return tuple(pair)

    assert check.combine(rounded).status == "wrong"


def test_the_hint_of_the_wrong_order():
    verdict = check.combine(lambda one, two: week10.combine(two, one))
    assert "not commutative" in verdict.hint


def in_place(one, two):
    one[1].mul_(two[0]).add_(two[1])
    return one[0] * two[0], one[1]


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda one, two: None, "Return a pair"),
        (lambda one, two: (*one, *two), "Return a pair"),
        (lambda one, two: (1.0, 2.0), "are tensors"),
        (lambda one, two: (one[0] * two[0], (two[0] * one[1] + two[1]).sum()), "number by number"),
        (lambda one, two: (one[0] - two[0], one[1] - two[1]), "Sort by h"),
        (lambda one, two: (torch.nan * one[0], torch.nan * one[1]), "Sort by h"),
        (in_place, "do not write into the old ones"),
    ],
)
def test_answers_of_another_kind(answer, hint):
    verdict = check.combine(answer)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict


def test_an_error_shows_the_student_s_line():
    verdict = check.combine(lambda one, two: one[2])
    assert "IndexError" in verdict.finding


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.combine, week10.combine))
