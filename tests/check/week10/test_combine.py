"""The operator: the solution passes; each common mistake gets its own hint."""

import pytest
import torch

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week10.combine import WRONG, judge, said
from notebooks.solutions import week10
from tests.check.alone import found_alone, names
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


def test_a_mistake_in_one_case_alone_is_found():
    """Off by 2e-12 in one number of either part; rounding is right."""

    def off(place, by):
        def solve(one, two):
            pair = list(week10.combine(one, two))
            if not pair[place].numel():
                return pair if by == 1e-13 else None
            pair[place].view(-1)[-1] += by
            return pair

        return solve

    wheres = [
        "a of shape (), b of shape ()", "a of shape (4,), b of shape (4,)",
        "a of shape (3, 1), b of shape (3, 5)", "a of shape (0,), b of shape (0,)",
    ]  # fmt: skip
    for place in (0, 1):
        for by in (2e-12, -2e-12):
            found = found_alone(check.combine, off(place, 1e-13), off(place, by))
            assert names(found) == wheres


def test_a_finding_shows_the_first_numbers():
    pair = torch.tensor([0.5, 9.0]), torch.tensor([2.0, 9.0])
    later = torch.tensor([3.0, 9.0]), torch.tensor([0.25, 9.0])
    pairs = [tuple(t.double() for t in one) for one in (pair, later)]
    right = (pairs[0][0] * pairs[1][0], pairs[1][0] * pairs[0][1] + pairs[1][1])
    judge((right, pairs), None, pairs)
    with pytest.raises(NotRight) as wrong:
        judge(((right[0], right[1] + 1), pairs), None, pairs)
    assert wrong.value.finding == "for (a, b) = (0.5, 2), then (3, 0.25): returned (1.5, 7.25)"
    with pytest.raises(NotRight) as wrong:
        judge(((right[0][None], right[1]), pairs), None, pairs)
    assert wrong.value.finding == "a has the shape (1, 2), and should have (2,)"
    for number, place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        after = [[t.clone() for t in one] for one in pairs]
        after[number][place][1] += 1
        with pytest.raises(NotRight, match="an argument has changed"):
            judge((right, after), None, pairs)


def test_each_wrong_rule_has_its_own_value():
    """With a1 = 2, b1 = 3, a2 = 5, b2 = 7: the right pair is (10, 22)."""
    numbers = [torch.tensor(float(n), dtype=torch.float64) for n in (2, 3, 5, 7)]
    found = [tuple(float(part) for part in rule(*numbers)) for rule, _ in WRONG]
    assert found == [
        (10, 17), (10, 10), (10, 13), (10, 29), (10, 50), (10, 37), (10, 7), (7, 22), (5, 22),
        (2, 22),
    ]  # fmt: skip


def test_a_long_answer_is_shown_in_part():
    assert said([1] * 26) == repr([1] * 26)
    assert said([1] * 27) == repr([1] * 27)[:77] + "…"
