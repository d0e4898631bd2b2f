"""Accept or resample: the solution passes; each common mistake gets its own hint."""

import random

import pytest
import torch

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.oracle import NotRight
from helpers.check.week09.accept_or_resample import (
    LAWS,
    RULES,
    drawn,
    hint,
    judge,
    right,
    with_draws,
)
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


def test_a_mistake_in_one_call_alone_is_found():
    """A wrong decision, and weights that are off by 2e-9; rounding is right."""
    calls = [call for law in LAWS for call in with_draws(*law)]
    assert len(calls) == 54
    rejected = 0

    for at, (p, q, guess, draw) in enumerate(calls):
        taken = draw < p[guess] / q[guess]
        rejected += not taken

        def answers(change, at=at):
            made = [week09.accept_or_resample(*call) for call in calls]
            made[at] = change(made[at])
            return made

        with pytest.raises(NotRight, match="rejected a guess" if taken else "accepted a guess"):
            judge(answers(lambda answer, t=taken, p=p, g=guess: p if t else g), None, calls)
        if not taken:
            judge(answers(lambda answer: answer + 1e-10), None, calls)
            for by in (2e-9, -2e-9):
                with pytest.raises(NotRight, match=f"the guess {guess} rejected: you return"):
                    judge(answers(lambda answer, by=by: answer + by), None, calls)
    assert rejected == 24


def test_the_draws_of_a_guess():
    draws = [draw for *_, draw in with_draws((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), 1)]
    assert draws == pytest.approx([0, 0.3, 0.7, 0.98 * 0.375, 1.02 * 0.375, 0.306, 1 - 2**-53])
    assert draws[-1] == 1 - 2**-53 < 1
    draws = [draw for *_, draw in with_draws((0.0, 1.0), (0.5, 0.5), 0)]
    assert draws == [0.0, 0.3, 0.7, 0.0, 0.0, 0.0, 1 - 2**-53]
    p, q, guess, _ = with_draws((0.25, 0.75), (0.5, 0.5), 1)[0]
    assert (p.tolist(), q.tolist(), guess) == ([0.25, 0.75], [0.5, 0.5], 1)
    assert p.dtype == q.dtype == torch.float64


def test_equal_probabilities_accept_every_draw_and_impossible_guesses_none():
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert right(half, half, 0, 1 - 2**-53)
    assert not right(half * 0, half, 0, 0.0)
    assert right(half, half * 2, 0, 0.49)
    assert not right(half, half * 2, 0, 0.5)


def test_a_finding_names_the_probabilities_and_the_draw():
    verdict = check.accept_or_resample(deciding(lambda p, q, x, r: True))
    assert verdict.finding == (
        "each pair of p and q, with several draws: accepted a guess with p = 0.3 and q = 0.8, "
        "for the draw 0.7"
    )
    verdict = check.accept_or_resample(weighing(lambda p, q: q))
    assert verdict.finding.endswith(
        "p = (0.5, 0.3, 0.2), q = (0.1, 0.8, 0.1), the guess 1 rejected: you return (0.1, 0.8, 0.1)"
    )
    verdict = check.accept_or_resample(lambda p, q, guess, draw: guess + 1)
    assert verdict.finding.endswith("returned the token 2; the guess was 1")


def test_the_usual_laws_are_laws():
    for p, q, guess in LAWS:
        assert sum(p) == pytest.approx(1) == sum(q)
        assert len(p) == len(q)
        assert q[guess] > 0  # the draft has drawn it


def test_laws_that_grading_draws_are_laws():
    for secret in range(20):
        p, q, guess = drawn(random.Random(secret))
        assert sum(p) == pytest.approx(1)
        assert sum(q) == pytest.approx(1)
        assert min(*p, *q) > 0
        assert p != q
        assert len(p) == len(q) == 5
        assert guess in range(5)
    assert len({drawn(random.Random(secret))[2] for secret in range(40)}) == 5
    with drawn_from(2):
        ((_, calls),) = asked(check.accept_or_resample, week09.accept_or_resample)
    laws = {str(call[:3]) for call in calls}
    assert len(laws) == 8 + 6


P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([0.5, 0.25, torch.nan], "what do you divide by"),
        ([torch.inf, 0.25, 0.25], "what do you divide by"),
        ([1.1, 0.0, -0.1], "cannot be negative"),
        ([5.0, 3.0, 2.0], "That is p itself"),
        ([0.25, 0.0, 0.0], "renormalise"),
        ([0.2, 1.2, 0.6], "the draft's law"),
        ([0.0, 0.75, 0.25], "too much"),
        ([0.5, 0.375, 0.125], "absolute value"),
        ([0.3, 0.2, 0.2], "Probabilities sum to 1"),
        ([0.7, 0.2, 0.2], "Probabilities sum to 1"),
        ([0.6, 0.2, 0.2], "What is left of p, where"),
        ([0.6, 0.2, 0.2 + 9e-10], "What is left of p, where"),
        ([0.6, 0.2, 0.2 - 2e-9], "Probabilities sum to 1"),
        ([0.5, 0.3, 0.2 + 3e-9], "Probabilities sum to 1"),
    ],
)
def test_the_hint_for_weights(weights, words):
    assert words in hint(torch.tensor(weights, dtype=torch.float64), P, Q)


def of_one(answer, draw=0.9):
    """The judge's words for an answer to one guess, which is rejected for a draw above 0.5."""
    with pytest.raises(NotRight) as wrong:
        judge([answer], None, [(P, Q, 1, draw)])
    return wrong.value


def test_the_form_of_one_answer():
    right = torch.tensor([1.0, 0.0, 0.0])
    judge([right], None, [(P, Q, 1, 0.9)])  # in float32
    for answer in (1, 1.0, torch.tensor(1), torch.tensor(1.0)):
        judge([answer], None, [(P, Q, 1, 0.4)])
        assert of_one(answer).finding == (
            "accepted a guess with p = 0.3 and q = 0.6, for the draw 0.9"
        )
    assert of_one(1.5).finding == "returned the token 1.5; the guess was 1"
    assert of_one(torch.tensor(2)).finding == "returned the token 2; the guess was 1"
    for answer in (None, True, [1.0, 0.0, 0.0]):
        wrong = of_one(answer)
        assert wrong.finding == f"returned {answer!r}"
        assert "a tensor of 3 probabilities if" in wrong.hint
    for shape in ((1,), (2,), (1, 3), (3, 1)):
        wrong = of_one(torch.ones(shape))
        assert wrong.finding.endswith(f"the guess 1 rejected: a tensor of shape {shape}")
        assert wrong.hint == "Return one probability for each of the 3 tokens."
