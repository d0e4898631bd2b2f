"""The objective: solutions of several kinds pass, common mistakes fail with their own hint."""

import numpy as np
import pytest
import torch

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.oracle import NotRight
from helpers.check.week02.objective import (
    DELTA,
    THETA,
    hint_objective,
    huber,
    judge_objective,
    mistakes,
    predicted,
    some_runs,
)
from notebooks.solutions import week02
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew


def variant(
    sum_=np.sum, log=np.log, log_n=np.log, lse=None, residual=None, loss_of=None, flip=False
):
    """A solution with parts that can be replaced."""

    def solve(theta, params, tokens, loss, delta=1e-3):
        a, b, e, alpha, beta = theta
        if flip:
            alpha, beta = beta, alpha
        terms = [a - alpha * log_n(params), b - beta * log_n(tokens), e + 0 * params]
        predicted = lse(terms) if lse else np.logaddexp.reduce(terms)
        r = residual(predicted, loss) if residual else predicted - log(loss)
        if loss_of:
            return sum_(loss_of(np.abs(r), delta))
        return sum_(np.where(np.abs(r) <= delta, r * r / 2, delta * (np.abs(r) - delta / 2)))

    return solve


def naive(terms):
    return np.log(sum(np.exp(t) for t in terms))


def never_put_back(terms):
    return np.log(np.exp(np.array(terms) - np.max(terms, 0)).sum(0))


def constant_forgotten(terms):
    return np.logaddexp(terms[0], terms[1])


def fixed_delta(theta, params, tokens, loss, delta=1e-3):
    return week02.huber_objective(theta, params, tokens, loss)


def signs(theta, params, tokens, loss, delta=1e-3):
    return week02.huber_objective(theta, 1 / params, 1 / tokens, loss, delta)


def swapped(theta, params, tokens, loss, delta=1e-3):
    return week02.huber_objective(theta, tokens, params, loss, delta)


def signed(theta, params, tokens, loss, delta=1e-3):
    a, b, e, alpha, beta = theta
    terms = [a - alpha * np.log(params), b - beta * np.log(tokens), e + 0 * params]
    r = np.logaddexp.reduce(terms) - np.log(loss)
    return np.where(r <= delta, r * r / 2, delta * (r - delta / 2)).sum()


MISTAKES = [
    (swapped, "Which array belongs"),
    (signed, "not which sign"),
    (variant(sum_=lambda values: 2 * np.sum(values)), "Twice as much"),
    (variant(sum_=np.mean), "averaged"),
    (variant(loss_of=lambda r, d: r * r), "outlier"),
    (variant(loss_of=lambda r, d: r * r / 2), "outlier"),
    (variant(residual=lambda p, L: np.exp(p) - L), "residual is of the losses"),
    (variant(log=np.log10), "Which logarithm"),
    (variant(log=np.log10, log_n=np.log10), "Which logarithm"),
    (variant(log_n=np.log10), "Which logarithm"),
    (variant(lse=naive), "taken out first"),
    (variant(lse=never_put_back), "never put back"),
    (variant(lse=lambda terms: np.max(terms, 0)), "largest of the three alone"),
    (variant(lse=constant_forgotten), "Where is E?"),
    (variant(lse=lambda terms: constant_forgotten(terms) + terms[2]), "Where is E?"),
    (variant(loss_of=lambda r, d: np.where(r <= d, r * r / 2, r - d / 2)), "slope of 1"),
    (variant(loss_of=lambda r, d: np.where(r <= d, r * r / 2 / d, r - d / 2)), "divided by delta"),
    (variant(loss_of=lambda r, d: np.where(r <= d, r * r / 2, d * r)), "does not begin"),
    (variant(loss_of=lambda r, d: np.where(r <= d, r * r / 2, d * (r - d))), "does not begin"),
    (variant(loss_of=lambda r, d: np.where(r > d, r * r / 2, d * (r - d / 2))), "changed places"),
    (variant(loss_of=lambda r, d: d * (r - d / 2)), "straight line alone"),
    (variant(loss_of=lambda r, d: d * r), "straight line alone"),
    (variant(flip=True), "divided by N^alpha"),
    (fixed_delta, "handed over"),
    (signs, "Look at the signs"),
    (variant(sum_=list), "one for each run"),
    (variant(sum_=lambda values: None), "Return one number"),
    (variant(sum_=lambda values: -np.sum(values)), "never negative"),
    (variant(sum_=lambda values: 3 * np.sum(values)), "Take one run"),
]


def test_the_solution_passes():
    verdict = check.huber_objective(week02.huber_objective)
    assert verdict, verdict


def test_another_way_passes_too():
    def in_torch(theta, params, tokens, loss, delta=1e-3):
        a, b, e, alpha, beta = theta
        size, data = (torch.as_tensor(x).log() for x in (params, tokens))
        terms = torch.stack([a - alpha * size, b - beta * data, torch.full_like(size, e)])
        target = torch.as_tensor(loss).log()
        return torch.nn.functional.huber_loss(
            terms.logsumexp(0), target, reduction="sum", delta=delta
        ).item()

    for solution in (variant(), in_torch):
        verdict = check.huber_objective(solution)
        assert verdict, verdict


@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.huber_objective(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.huber_objective, week02.huber_objective))


def test_a_mistake_in_one_case_alone_is_found():
    """A millionth counts; what another order of sums changes does not."""

    def off(by):
        return lambda *given: week02.huber_objective(*given) * (1 + by)

    found = found_alone(check.huber_objective, off(5e-7), off(-2e-6))
    assert [finding.partition(": ")[0] for finding in found] == [
        "near the minimum, 12 runs, delta 0.001",
        "all within delta, 5 runs, delta 0.001",
        "another start of the search, 9 runs, delta 0.001",
        "another delta, 12 runs, delta 0.01",
        "one run, 1 run, delta 0.001",
        "large exponents, 6 runs, delta 0.001",
        "small exponents, 6 runs, delta 0.001",
    ]
    assert "(residuals from -0.00349 to 0.00349)" in found[0]
    assert "(residuals from -0.000285 to 0.000159)" in found[1]


def test_hubers_loss_by_hand():
    found = huber(np.array([0.0, 0.5, -1.0, 2.0, -3.0]), 1.0)
    np.testing.assert_allclose(found, [0, 0.125, 0.5, 1.5, 2.5])
    np.testing.assert_allclose(huber(np.array([-4.0]), 2.0), [6.0])


def test_the_law_by_hand():
    theta = (np.log(400), np.log(900), np.log(2), 0.5, 0.25)
    found = predicted(theta, np.array([1e4, 1e6]), np.array([81e4, 16.0]))
    np.testing.assert_allclose(np.exp(found), [4 + 30 + 2, 0.4 + 450 + 2])


def test_the_runs_have_both_sides_of_delta_and_other_sizes_each():
    params, tokens, loss = some_runs(12, 0.004)
    assert len(set(params)) == len(set(tokens)) == len(set(loss)) == 12
    assert 1e7 < params.min() < 1e8 < 1e9 < params.max() < 1e10
    assert 1e9 < tokens.min() < 1e10 < tokens.max() < 1e11
    far = np.abs(predicted(THETA, params, tokens) - np.log(loss))
    assert 0 < (far < DELTA).sum() < 12
    assert far.max() < 0.004
    with drawn_from(5):
        assert not np.isin(some_runs(12, 0.004), (params, tokens, loss)).any()


THETA_2 = (2.0, 3.0, 0.5, 0.4, 0.2)
RUNS = np.array([9.0, 30.0]), np.array([50.0, 7.0]), np.array([3.0, 20.0])


def test_each_mistake_that_is_known_has_its_own_value():
    values = [value for _, value in mistakes(THETA_2, *RUNS, 0.4)]
    assert len(values) == 26
    assert np.isfinite(values).all()
    assert len({f"{value:.9e}" for value in values}) == len(values)
    assert np.isnan([value for _, value in mistakes(THETA_2, *RUNS, DELTA)]).sum() == 1


@pytest.mark.parametrize("number", range(26))
def test_the_hint_for_a_known_value(number):
    words, value = list(mistakes(THETA_2, *RUNS, 0.4))[number]
    assert hint_objective(value * (1 + 5e-7), THETA_2, *RUNS, 0.4) == words
    assert hint_objective(value * (1 - 2e-6), THETA_2, *RUNS, 0.4) != words


def test_the_kind_of_answer():
    with pytest.raises(NotRight, match="returned 2 numbers"):
        judge_objective(np.ones(2), THETA_2, *RUNS)
    with pytest.raises(NotRight, match="returned 2 numbers"):
        judge_objective([1.0, 2.0], THETA_2, *RUNS)
    for answer in (np.ones(3), "1", None, True):
        with pytest.raises(NotRight) as wrong:
            judge_objective(answer, THETA_2, *RUNS)
        assert wrong.value.hint == "Return one number."
    right = week02.huber_objective(THETA_2, *RUNS, 0.4)
    judge_objective(np.array([right]), THETA_2, *RUNS, 0.4)
