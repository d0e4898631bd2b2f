"""Which runs do not determine the fit, and what the doubts say."""

import math
import re
import warnings

import numpy as np
import pytest

from helpers.scaling import chinchilla
from helpers.scaling.chinchilla import NotIdentified, fit_chinchilla
from helpers.scaling.law import BESIROGLU
from helpers.scaling.objective import Objective
from helpers.scaling.search import grid
from tests.scaling.test_chinchilla import best_of

FEW = grid()[::60]  # 75 starts


def runs_of(params, tokens, noise=0.01, law=BESIROGLU):
    params, tokens = np.broadcast_arrays(np.asarray(params, float), np.asarray(tokens, float))
    wobble = np.random.default_rng(0).normal(size=params.shape)
    return params, tokens, law.loss(params, tokens) * np.exp(noise * wobble)


N, D = np.logspace(7, 10, 24), np.logspace(9, 11.5, 24)


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (runs_of(np.repeat([1e8, 1e9], 12), D), "2 sizes of params"),
        (runs_of(N, 1e10), "1 sizes of tokens"),
        (runs_of(N[::6], D[::6]), "only 4 runs for five numbers"),
        (runs_of(N[::5], D[::5]), "only 5 runs for five numbers"),
        (runs_of(N, 20 * N), "do not distinguish|a limit is reached"),
        (runs_of(N, D[::-1], noise=0.5), "standard error|a limit is reached"),
    ],
)
def test_runs_that_do_not_determine_the_fit_are_doubted(runs, reason):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = fit_chinchilla(*runs, starts=FEW)
    assert caught
    assert all(w.category is NotIdentified for w in caught)
    assert {w.filename for w in caught} == {__file__}  # the caller's own line
    assert any(re.search(reason, doubt) for doubt in fit.doubts), fit.doubts


def test_minima_that_tie_are_doubted():
    """The loss depends only on the common size, so no fit can know which term carries it."""
    size = np.repeat(np.logspace(7, 10, 20), 2)
    loss = 1.7 + 400 / size**0.34
    with pytest.warns(NotIdentified, match="tie|distinguish|limit"):
        fit_chinchilla(size, size, loss, starts=FEW)


def test_two_minima_of_one_height_tie(sweep):
    runs = sweep(0, runs=60)
    problem, theta, _ = best_of(runs)
    both = np.stack([theta, theta + [0, 0, 0, 0.1, 0]])
    found = {
        far: list(chinchilla.find_doubts(problem, *runs[:2], both, heights, [0, 0]))
        for far, heights in ((0.0, np.array([1, 1])), (1e-3, np.array([1, 1.001])))
    }
    assert any("minima tie: a = 0.513 and 0.450" in doubt for doubt in found[0.0])
    assert found[1e-3] == []


def test_the_farthest_of_several_ties_is_named_and_three_sizes_are_enough(sweep):
    params, tokens, loss = sweep(0, runs=60)
    problem, theta, _ = best_of((params, tokens, loss))
    tied = theta + np.array([0.0, 0.002, 0.1, 0.05])[:, None] * [0, 0, 0, 1, 0]
    sizes = np.resize([1e8, 1e9, 1e10], 60)
    found = list(chinchilla.find_doubts(problem, sizes, sizes, tied, np.ones(4), np.array([0, 1])))
    assert found == ["minima tie: a = 0.513 and 0.450 fit equally well"]


@pytest.mark.parametrize(
    ("changed", "steepness", "doubts"),
    [
        ({}, 0.9e-8, []),
        ({}, 2e-6, ["the search has not converged: the gradient is still 2e-06"]),
        ({0: -900.0}, 0, ["a limit is reached: the term of A is below 0.1 % of every loss"]),
        ({1: -900.0}, 0, ["a limit is reached: the term of B is below 0.1 % of every loss"]),
        ({2: -900.0}, 0, ["a limit is reached: the term of E is below 0.1 % of every loss"]),
        ({3: 6.0, 0: 105.0}, 0, ["a limit is reached: alpha = 6"]),
        ({4: 0.005, 1: 0.0}, 0, ["a limit is reached: beta = 0.005"]),
    ],
)
def test_each_limit_is_a_doubt_of_its_own(sweep, changed, steepness, doubts):
    runs = sweep(0, runs=60)
    problem, theta, _ = best_of(runs)
    for place, value in changed.items():
        theta[place] = value
    found = chinchilla.find_doubts(problem, *runs[:2], theta[None], np.ones(1), [steepness])
    limits = [d for d in found if d.startswith(("a limit", "the search"))]
    assert limits == doubts


def test_an_error_of_more_than_half_is_a_doubt(sweep):
    problem, theta, r = best_of(sweep(0, runs=60))
    errors = chinchilla.standard_errors(problem, theta, r)
    for share, doubts in ((0.45, 0), (0.55, 1)):
        larger = r * share * theta[3] / errors[0]  # the errors are proportional to the residuals
        found = [d for d in chinchilla.flatness(problem, theta, larger) if d.startswith("alpha")]
        assert len(found) == doubts


def test_a_term_may_vanish_for_some_runs_but_not_for_all():
    law = BESIROGLU
    theta = np.array([[math.log(law.A), math.log(law.B), math.log(law.E), law.alpha, law.beta]])
    for smallest, doubts in ((1e7, 0), (1e18, 1)):
        params = np.geomspace(smallest, 1e19, 24)  # below 0.1 % from about 1e16 on
        runs = runs_of(params, np.roll(D, 7))
        problem = Objective.of(*runs, 1e-3)
        found = list(chinchilla.find_doubts(problem, *runs[:2], theta, np.ones(1), [0]))
        assert sum("the term of A is below" in doubt for doubt in found) == doubts
