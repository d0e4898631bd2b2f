"""The objective: solutions of several kinds pass, common mistakes fail with their own hint."""

import numpy as np
import pytest
import torch

from helpers import check
from notebooks.solutions import week02
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
