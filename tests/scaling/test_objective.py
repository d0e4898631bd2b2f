import numpy as np
import pytest

from helpers.scaling import objective
from helpers.scaling.objective import Objective

DELTA = 1e-3
THETA = np.array([[6.1, 7.6, 0.6, 0.35, 0.37], [5.0, 10.0, -1.0, 0.5, 1.0], [0.0, 25.0, 1.0, 0, 2]])


def plain(theta, params, tokens, loss, weights):
    """The sum term by term, as in the paper, without matrices or scaling."""
    a, b, e, alpha, beta = theta
    total = 0.0
    for n, d, value, weight in zip(params, tokens, loss, weights, strict=True):
        terms = [a - alpha * np.log(n), b - beta * np.log(d), e]
        r = abs(np.logaddexp.reduce(terms) - np.log(value))
        total += weight * (r * r / 2 if r <= DELTA else DELTA * (r - DELTA / 2))
    return total


def test_value_is_the_sum_of_huber_terms(sweep):
    params, tokens, loss = sweep(0, runs=30)
    problem = Objective.of(params, tokens, loss, DELTA)
    weights = np.random.default_rng(1).integers(0, 3, (len(THETA), 30)).astype(float)
    points = problem.inward(THETA)
    ones = [plain(t, params, tokens, loss, np.ones(30)) for t in THETA]
    some = [plain(t, params, tokens, loss, w) for t, w in zip(THETA, weights, strict=True)]
    np.testing.assert_allclose(problem.value(points), ones, rtol=1e-12)
    np.testing.assert_allclose(problem.value(points, weights), some, rtol=1e-12)
    np.testing.assert_allclose(problem.outward(points), THETA, rtol=1e-12, atol=1e-12)


def test_points_are_computed_in_parts(sweep, monkeypatch):
    problem = Objective.of(*sweep(0, runs=30), DELTA)
    points = problem.inward(THETA)
    whole, derivatives = problem.value(points), problem.derivatives(points)
    monkeypatch.setattr(objective, "CHUNK", 60)  # numbers: two points at a time
    np.testing.assert_allclose(problem.value(points), whole, rtol=1e-12)
    for ours, expected in zip(problem.derivatives(points), derivatives, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-15)


def test_one_size_alone_has_no_spread_to_divide_by():
    problem = Objective.of([1e8, 1e8], [1e9, 1e9], [3.0, 2.9], DELTA)
    assert np.isfinite(problem.value(problem.inward(THETA))).all()
    np.testing.assert_allclose(problem.outward(problem.inward(THETA)), THETA, rtol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_derivatives_are_those_of_the_value(sweep, noise):
    problem = Objective.of(*sweep(2, runs=40, noise=noise), delta=0.05)
    rng = np.random.default_rng(3)
    points = problem.inward(THETA[:2]) + 0.01 * rng.normal(size=(2, 5))
    weights = rng.uniform(0.5, 2, (2, 40))
    f, gradient, hessian, bound = problem.derivatives(points, weights)
    np.testing.assert_allclose(f, problem.value(points, weights), rtol=1e-13)
    step = 1e-6
    for k in range(5):
        ahead, behind = points.copy(), points.copy()
        ahead[:, k] += step
        behind[:, k] -= step
        slope = (problem.value(ahead, weights) - problem.value(behind, weights)) / (2 * step)
        # error of central differences: rounding of f, near 1, over the step
        np.testing.assert_allclose(gradient[:, k], slope, rtol=1e-6, atol=1e-8)
        one, two = (problem.derivatives(p, weights)[1] for p in (ahead, behind))
        np.testing.assert_allclose(hessian[:, k], (one - two) / (2 * step), rtol=1e-4, atol=1e-5)
    assert (np.linalg.eigvalsh(bound) > -1e-12 * np.trace(bound, axis1=1, axis2=2)[:, None]).all()


def test_many_points_are_as_each_alone(sweep):
    problem = Objective.of(*sweep(4, runs=240), delta=DELTA)
    points = problem.inward(THETA)[np.arange(700) % 3]  # enough points for several chunks
    together = problem.derivatives(points)
    alone = problem.derivatives(points[:3])
    for many, few in zip(together, alone, strict=True):
        np.testing.assert_allclose(many, few[np.arange(700) % 3], rtol=1e-12, atol=1e-14)
