import itertools
import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from helpers.scaling import chinchilla
from helpers.scaling.chinchilla import ChinchillaFit, fit_chinchilla
from helpers.scaling.law import BESIROGLU, HOFFMANN
from helpers.scaling.objective import Objective
from helpers.scaling.search import grid

FEW = grid()[::60]  # 75 starts, for the tests that are not about the search


def test_the_grid_is_the_papers():
    """Hoffmann et al. 2022, appendix D.2: 6 x 6 x 5 x 5 x 5."""
    points = grid()
    assert points.shape == (4500, 5)
    assert len(np.unique(points, axis=0)) == 4500
    assert [sorted(set(c)) for c in points.T] == [
        [0, 5, 10, 15, 20, 25],
        [0, 5, 10, 15, 20, 25],
        [-1, -0.5, 0, 0.5, 1],
        [0, 0.5, 1, 1.5, 2],
        [0, 0.5, 1, 1.5, 2],
    ]


@pytest.mark.parametrize("law", [BESIROGLU, HOFFMANN])
def test_without_noise_the_coefficients_come_back(sweep, law):
    fit = fit_chinchilla(*sweep(0, runs=60, noise=0, law=law), starts=FEW)
    for name in ("E", "A", "B", "alpha", "beta"):
        assert getattr(fit, name) == pytest.approx(getattr(law, name), rel=1e-8)
    assert fit.exponents == pytest.approx(law.exponents)
    assert fit.loss(1e9, 2e10) == pytest.approx(law.loss(1e9, 2e10))
    assert fit.optimal(1e21) == pytest.approx(law.optimal(1e21), rel=1e-6)
    assert fit.doubts == ()


@pytest.mark.parametrize("seed", [0])
def test_no_lower_minimum_is_found_by_scipy_from_many_starts(sweep, seed):
    """The plain method: L-BFGS from many starts, with tight tolerances."""
    params, tokens, loss = sweep(seed, runs=60)
    fit = fit_chinchilla(params, tokens, loss)
    problem = Objective.of(params, tokens, loss, 1e-3)

    def value(point):
        f, gradient, *_ = problem.derivatives(point[None])
        return 1e3 * f[0], 1e3 * gradient[0]

    tight = {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 2000, "maxfun": 4000}
    found = [
        minimize(value, start, jac=True, method="L-BFGS-B", options=tight).fun
        for start in problem.inward(grid()[::150])
    ]
    assert fit.objective <= min(found) / 1e3 * (1 + 1e-9)
    assert fit.objective == pytest.approx(min(found) / 1e3, rel=1e-4)  # the same valley


def test_the_minimum_is_one_to_nine_digits(sweep):
    """Other starts give the same minimum, so the search's tolerances do not matter."""
    runs = sweep(3)
    one, two = fit_chinchilla(*runs, starts=FEW), fit_chinchilla(*runs, starts=grid()[7::80])
    assert one.objective == pytest.approx(two.objective, rel=1e-9)
    assert one.exponents == pytest.approx(two.exponents, rel=1e-7)


def test_intervals_hold_the_truth_as_often_as_they_say(sweep):
    """90 % intervals over 30 sweeps. If they are right, below 22 of 30 has a chance of 0.2 %."""
    held = dict.fromkeys(("E", "alpha", "beta", "a"), 0)
    truth = {"E": BESIROGLU.E, "alpha": BESIROGLU.alpha, "beta": BESIROGLU.beta}
    truth["a"] = BESIROGLU.exponents[0]
    widths = []
    for seed in range(100, 130):
        runs = sweep(seed, runs=120, noise=0.01)
        fit = fit_chinchilla(*runs, bootstrap=60, seed=seed, confidence=0.9, starts=FEW[::3])
        for name, value in truth.items():
            low, high = fit.intervals[name]
            held[name] += low <= value <= high
        widths.append(fit.intervals["a"][1] - fit.intervals["a"][0])
    assert min(held.values()) >= 22, held
    assert max(widths) < 0.2  # the intervals are not right by being very wide


def test_bootstraps_depend_on_the_seed_alone(sweep):
    runs = sweep(5, runs=60)
    first, again, other = (
        fit_chinchilla(*runs, bootstrap=20, seed=s, starts=FEW).intervals for s in (1, 1, 2)
    )
    assert first == again != other
    whole = fit_chinchilla(*runs, bootstrap=20, seed=1, starts=FEW)
    picture = whole.picture()
    dots = np.asarray(picture.axes[0].collections[0].get_offsets())
    assert dots == pytest.approx(np.column_stack([runs[2], whole.loss(*runs[:2])]))
    assert sum(bar.get_height() for bar in picture.axes[1].patches) == 20
    for name, interval in first.items():  # 95 % of the bootstraps
        assert interval == pytest.approx(tuple(np.percentile(whole.samples[name], [2.5, 97.5])))
    assert set(first) == {"E", "A", "B", "alpha", "beta", "a", "b"}


def test_a_bootstrap_is_a_fit_to_the_rows_drawn(sweep, monkeypatch):
    monkeypatch.setattr(chinchilla, "ROUND", 2)  # more than one round
    params, tokens, loss = sweep(6, runs=60)
    fit = fit_chinchilla(params, tokens, loss, bootstrap=3, seed=7, starts=FEW)
    rng = np.random.default_rng(7)
    rng.normal(size=(2, 5))
    draws = rng.multinomial(60, np.full(60, 1 / 60), size=3)
    assert np.array_equal(fit.draws, draws)
    for number, draw in enumerate(draws):
        rows = np.repeat(np.arange(60), draw)
        own = fit_chinchilla(params[rows], tokens[rows], loss[rows], starts=FEW)
        assert fit.samples["alpha"][number] == pytest.approx(own.alpha, rel=1e-5)


@pytest.mark.parametrize(
    ("column", "value"),
    list(itertools.product(range(3), [0.0, -1.0, float("nan"), float("inf")])),
)
def test_a_wrong_value_is_refused_with_its_row(sweep, column, value):
    runs = [list(values) for values in sweep(0, runs=10)]
    runs[column][7] = value
    name = ("params", "tokens", "loss")[column]
    with pytest.raises(ValueError, match=rf"row 7: {name}"):
        fit_chinchilla(*runs)


def test_other_wrong_input_is_refused(sweep):
    params, tokens, loss = sweep(0, runs=10)
    with pytest.raises(ValueError, match="equally long"):
        fit_chinchilla(params, tokens[:-1], loss)
    with pytest.raises(ValueError, match="not empty"):
        fit_chinchilla([], [], [])
    for delta in (0, math.inf, math.nan):
        with pytest.raises(ValueError, match="delta"):
            fit_chinchilla(params, tokens, loss, delta=delta)
    for options in ({"confidence": 95}, {"confidence": 1}, {"confidence": 0}, {"bootstrap": -1}):
        with pytest.raises(ValueError, match="is out of range"):
            fit_chinchilla(params, tokens, loss, **{"bootstrap": 3, **options})


def best_of(runs):
    """The objective of these runs, and the point of BESIROGLU, with its residuals."""
    problem = Objective.of(*runs, 1e-3)
    law = BESIROGLU
    theta = np.array([math.log(law.A), math.log(law.B), math.log(law.E), law.alpha, law.beta])
    return problem, theta, problem._residuals(problem.inward(theta[None]))[0][0]


def test_standard_errors_are_those_of_least_absolute_deviations(sweep):
    """pi/2 times the covariance of least squares, with slopes from differences of the law."""
    params, tokens, loss = sweep(0, runs=60)
    problem, theta, _ = best_of((params, tokens, loss))

    def logs(point):
        a, b, e, alpha, beta = point
        terms = [a - alpha * np.log(params), b - beta * np.log(tokens), np.full(60, e)]
        return np.logaddexp.reduce(terms)

    slopes = [(logs(theta + step) - logs(theta - step)) / 2e-5 for step in 1e-5 * np.eye(5)]
    # of a normal variable, half of the values are within 0.6745 standard deviations
    r = 0.01 * norm.ppf((np.arange(60) + 0.5) / 60)
    exact = 0.01 * np.sqrt(
        np.pi / 2 * np.diag(np.linalg.inv(np.array(slopes) @ np.array(slopes).T))
    )
    assert chinchilla.standard_errors(problem, theta, r) == pytest.approx(exact[3:], rel=0.02)


def test_a_bootstrap_takes_the_lowest_of_its_ends(sweep):
    """The first start has no term of A, and never gets one."""
    problem, theta, _ = best_of(sweep(0, runs=60))
    without = theta - np.array([1000.0, 0, 0, 0, 0])
    again, _ = chinchilla.resampled(problem, np.stack([without, theta]), np.array([1, 1.4]), 3, 0)
    assert again[:, 0] == pytest.approx([theta[0]] * 3, rel=0.3)


def test_a_fit_without_an_optimum_says_so():
    right = {"E": 1, "A": 1, "B": 1, "alpha": 0.1, "beta": 0.3, "doubts": ("why",)}
    for name in ("alpha", "beta", "A", "B"):
        for value in (-0.1, 0.0):
            fit = ChinchillaFit(**right | {name: value}, objective=0)
            assert np.isnan(fit.exponents).all() == (name in ("alpha", "beta"))
            with pytest.raises(ValueError, match="no optimum: why"):
                fit.optimal(1e20)


def test_an_interval_leaves_out_as_much_below_as_above(sweep):
    runs = sweep(0, runs=60)
    fit = fit_chinchilla(*runs, starts=FEW, bootstrap=60, confidence=0.8)
    assert [column.tolist() for column in fit.runs] == [column.tolist() for column in runs]
    samples = fit.samples
    a = samples["beta"] / (samples["alpha"] + samples["beta"])
    assert samples["a"] == pytest.approx(a)
    assert samples["b"] == pytest.approx(1 - a)
    for name, half in (("E", 0.3), ("A", 400), ("B", 2000)):
        assert np.median(samples[name]) == pytest.approx(getattr(fit, name), abs=half)
    for name, (low, high) in fit.intervals.items():
        assert (low, high) == pytest.approx(tuple(np.percentile(fit.samples[name], [10, 90])))
        inside = np.mean((fit.samples[name] >= low) & (fit.samples[name] <= high))
        assert inside == pytest.approx(0.8, abs=0.05)


def test_a_standard_error_is_the_spread_of_repeated_fits(sweep):
    """Fits to many draws of the noise spread as far as the formula says from one of them."""
    truth = [math.log(BESIROGLU.A), math.log(BESIROGLU.B), math.log(BESIROGLU.E)]
    start = np.array([[*truth, BESIROGLU.alpha, BESIROGLU.beta]])
    found, errors = [], []
    for seed in range(30):
        params, tokens, loss = sweep(seed, runs=60, noise=0.01)
        problem = Objective.of(params, tokens, loss, 1e-3)
        fit = fit_chinchilla(params, tokens, loss, starts=start)
        theta = np.array([math.log(fit.A), math.log(fit.B), math.log(fit.E), fit.alpha, fit.beta])
        r, *_ = problem._residuals(problem.inward(theta[None]))
        found.append((fit.alpha, fit.beta))
        errors.append(chinchilla.standard_errors(problem, theta, r[0]))
    ratio = np.median(errors, axis=0) / np.std(found, axis=0)
    assert ((ratio > 0.65) & (ratio < 1.5)).all(), ratio


def test_a_fit_is_printed_without_its_runs_and_bootstraps(sweep):
    """The five numbers, the objective, the intervals and the doubts: what a reader can read."""
    right = {"E": 1.5, "A": 400.0, "B": 900.0, "alpha": 0.3, "beta": 0.4, "objective": 0.25}
    arrays = {"runs": sweep(0, runs=10), "samples": {"a": np.ones(3)}, "draws": np.ones((3, 10))}
    fit = ChinchillaFit(**right, intervals={"a": (0.4, 0.6)}, doubts=("why",), **arrays)
    assert repr(fit) == (
        "ChinchillaFit(E=1.5, A=400.0, B=900.0, alpha=0.3, beta=0.4, objective=0.25, "
        "intervals={'a': (0.4, 0.6)}, doubts=('why',))"
    )
    assert fit == ChinchillaFit(**right, intervals={"a": (0.4, 0.6)}, doubts=("why",))
