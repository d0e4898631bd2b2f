"""Accept or resample: the solution passes; each common mistake gets its own hint."""

import pytest
import torch

from helpers import check
from helpers.check.week09.accept_or_resample import LAWS, RULES, right, with_draws
from helpers.inference.accept import residual
from notebooks.solutions import week09
from tests.check.asked import asked, drawn_anew


def deciding(rule):
    """The right weights after a wrong decision. Where nothing is left of p, p itself."""

    def solve(p, q, guess, draw):
        if rule(p, q, guess, draw):
            return guess
        left = (p - q).clamp(min=0)
        return left / left.sum() if left.sum() > 0 else p

    return solve


def weighing(weights):
    """Other weights after the right decision."""

    def solve(p, q, guess, draw):
        return guess if draw * q[guess] < p[guess] else weights(p, q)

    return solve


def test_the_solution_passes():
    verdict = check.accept_or_resample(week09.accept_or_resample)
    assert verdict, verdict


def test_other_ways_to_write_it_pass():
    def solve(p, q, guess, draw):
        if draw < min(1.0, float(p[guess] / q[guess])):
            return torch.tensor(guess)
        left = torch.maximum(p - q, torch.zeros_like(p))
        return left / left.sum()

    assert check.accept_or_resample(solve)


def test_a_stub_is_told_apart():
    def stub(p, q, guess, draw):
        raise NotImplementedError

    assert check.accept_or_resample(stub).status == "not written yet"


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        # the ratio
        (deciding(lambda p, q, x, r: True), "No guess is ever rejected"),
        (deciding(lambda p, q, x, r: False), "No guess is ever accepted"),
        (deciding(lambda p, q, x, r: r < q[x] / p[x]), "upside down"),
        (deciding(lambda p, q, x, r: r >= p[x] / q[x]), "direction"),
        (deciding(lambda p, q, x, r: r < p[x]), "divide by it"),
        (deciding(lambda p, q, x, r: r < q[x]), "depend on the target's p"),
        (deciding(lambda p, q, x, r: p[x] >= q[x]), "what is the draw for"),
        (deciding(lambda p, q, x, r: x == p.argmax()), "best token alone"),
        (deciding(lambda p, q, x, r: r * q[x] <= p[x]), "Compare with <"),
        (deciding(lambda p, q, x, r: r < 0.5), "Of which ratio"),
        # what is drawn after a rejection
        (weighing(lambda p, q: p), "That is p itself"),
        (weighing(lambda p, q: 3 * p), "That is p itself"),
        (weighing(lambda p, q: (p - q).clamp(min=0)), "do not sum to 1: renormalise"),
        (weighing(lambda p, q: q), "the draft's law"),
        (weighing(lambda p, q: p - q), "cannot be negative"),
        (weighing(lambda p, q: (q - p).clamp(min=0) / (q - p).clamp(min=0).sum()), "too much"),
        (weighing(lambda p, q: (p - q).abs() / (p - q).abs().sum()), "absolute value"),
        (weighing(lambda p, q: (p - q).clamp(min=0).softmax(0)), "What is left of p, where"),
        (
            weighing(lambda p, q: 0.999 * residual(p, q) + 0.001 * p),
            "What is left of p, where",
        ),
        (weighing(lambda p, q: p / 2), "p itself"),
        (weighing(lambda p, q: torch.full_like(p, 0.4)), "sum to 1"),
        (weighing(lambda p, q: p / 0), "what do you divide by"),
        # the form of the answer
        (weighing(lambda p, q: p[:1]), "one probability for each"),
        (weighing(lambda p, q: None), "if it is rejected"),
        (weighing(lambda p, q: int(p.argmax())), "Nothing is drawn here"),
        (lambda p, q, guess, draw: True, "if it is rejected"),
        (lambda p, q, guess, draw: guess + 1, "the guess itself"),
    ],
)
def test_each_mistake_is_told(mistake, hint):
    verdict = check.accept_or_resample(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_an_error_is_shown_with_the_student_s_line():
    def fails(p, q, guess, draw):
        return p[99]

    verdict = check.accept_or_resample(fails)
    assert verdict.status == "wrong"
    assert "IndexError" in verdict.finding
    assert "p[99]" in verdict.finding


def test_the_arguments_are_copies():
    def writes(p, q, guess, draw):
        answer = week09.accept_or_resample(p.clone(), q.clone(), guess, draw)
        p.zero_(), q.zero_()
        return answer

    assert check.accept_or_resample(writes)


def test_no_two_rules_decide_alike():
    """Else a hint could be that of another mistake."""
    calls = [call for law in LAWS for call in with_draws(*law)]
    tables = [tuple(rule(*call) for call in calls) for rule in (right, *(r for r, _ in RULES))]
    assert len(set(tables)) == len(tables)


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.accept_or_resample, week09.accept_or_resample))
