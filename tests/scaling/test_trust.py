"""Fits to the small half of the runs, compared with the large half; fits compared in pairs."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from helpers.scaling.chinchilla import ChinchillaFit, fit_chinchilla
from helpers.scaling.law import BESIROGLU
from helpers.scaling.search import grid
from helpers.scaling.table import read
from helpers.scaling.trust import extrapolate, probability_larger


def test_runs_that_follow_a_law_are_predicted(sweep):
    params, tokens, loss = sweep(0, runs=60, noise=0.0)
    found = extrapolate(params, tokens, loss, share=0.5)
    assert len(found.errors) == 30
    assert found.mean_error < 1e-6
    compute = np.sort(6 * params * tokens)
    assert found.limit == pytest.approx(compute[29], rel=1e-12)
    assert found.compute == pytest.approx(compute[30:], rel=1e-12)
    quarter = extrapolate(params, tokens, loss, share=0.25, starts=grid()[::60])
    assert (len(quarter.errors), len(quarter.fit.runs[0])) == (45, 15)
    options = {"bootstrap": 3, "starts": grid()[::500]}
    assert len(extrapolate(params, tokens, loss, **options).fit.samples["a"]) == 3


def test_noise_is_not_made_larger(sweep):
    found = extrapolate(*sweep(0, noise=0.005), starts=grid()[::60])
    assert 0 < found.mean_error < 0.02
    assert found.errors.min() < 0 < found.errors.max()
    # errors of both signs do not cancel
    assert replace(found, errors=np.array([0.1, -0.3])).mean_error == pytest.approx(0.2)


def test_only_the_small_runs_are_seen(sweep):
    params, tokens, loss = sweep(1, runs=60, noise=0.0)
    large = params * tokens > np.median(params * tokens)
    loss = np.where(large, 1.1 * loss, loss)  # the large runs follow another law
    found = extrapolate(params, tokens, loss)
    assert abs(found.fit.E / BESIROGLU.E - 1) < 1e-4
    # the predictions are too low
    assert found.errors == pytest.approx(np.full(30, 1 / 1.1 - 1), abs=1e-6)
    assert found.mean_error == pytest.approx(1 - 1 / 1.1, abs=1e-6)


@pytest.mark.parametrize("share", [0.0, 1.0, 0.001])
def test_a_share_that_leaves_nothing_is_refused(sweep, share):
    with pytest.raises(ValueError, match="leaves no run"):
        extrapolate(*sweep(0, runs=20), share=share)


FEW = grid()[::60]


def fit(runs, seed=1, bootstrap=40):
    return fit_chinchilla(*runs, bootstrap=bootstrap, seed=seed, starts=FEW)


def with_samples(a, draws=None):
    a = np.asarray(a, dtype=float)
    draws = np.ones((len(a), 2), dtype=int) if draws is None else draws
    numbers = dict.fromkeys(("E", "A", "B", "alpha", "beta"), 1.0)
    return ChinchillaFit(**numbers, objective=0.0, samples={"a": a, "b": 1 - a}, draws=draws)


def test_the_share_of_pairs_in_which_the_first_is_larger():
    first = with_samples([0.1, 0.5, 0.6, 0.7, 0.8, np.nan])
    second = with_samples([0.2, 0.5, 0.5, 0.5, 0.9, 0.1])
    assert probability_larger(first, second) == pytest.approx((2 + 0.5 + 0.5) / 6)
    assert probability_larger(second, first) == pytest.approx((2 + 0.5 + 0.5) / 6)
    assert probability_larger(with_samples([3, 3, 3, 0]), with_samples([1, 1, 1, 1])) == 0.75
    assert probability_larger(with_samples([3, 3, 3, 0]), with_samples([1, 1, 1, 1]), "b") == 0.25
    assert probability_larger(first, first) == 0.5


def test_pairs_separate_what_overlapping_intervals_do_not(sweep):
    """The second loss depends a little more on N: that moves `a` by less than its interval."""
    params, tokens, loss = sweep(8, runs=60)
    first = fit((params, tokens, loss))
    second = fit((params, tokens, loss * (params / 1e9) ** 0.004))
    shift = abs(first.exponents[0] - second.exponents[0])
    low, high = first.intervals["a"]
    assert 0 < shift < (high - low) / 2
    share = probability_larger(first, second)
    assert share > 0.9
    assert probability_larger(second, first) == pytest.approx(1 - share)
    # with different resamples, the luck of the draw hides part of the order
    shifted = np.mean(first.samples["a"] > np.roll(second.samples["a"], 1))
    assert shifted < share


def test_each_pair_is_one_resample_of_the_same_rows(sweep):
    params, tokens, loss = sweep(9, runs=40)
    other = loss * (tokens / 1e10) ** 0.01
    first, second = (fit((params, tokens, y), bootstrap=4) for y in (loss, other))
    larger = []
    for draw in first.draws:
        rows = np.repeat(np.arange(40), draw)
        assert len(rows) == 40
        ours, theirs = (
            fit_chinchilla(params[rows], tokens[rows], y[rows], starts=FEW) for y in (loss, other)
        )
        larger.append(ours.exponents[0] > theirs.exponents[0])
    assert probability_larger(first, second) == np.mean(larger)


def test_leaving_out_the_embeddings_raises_a_on_the_committed_sweep():
    """Leaving out the embeddings shrinks the small models most, and that raises `a`."""
    rows = [row for row in read() if row["phase"] == "sweep"]
    params, bare, tokens, loss = (
        np.array([row[name] for row in rows], dtype=float)
        for name in ("params", "non_embedding", "tokens", "loss")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        all_of_it, without = fit((params, tokens, loss)), fit((bare, tokens, loss))
    assert probability_larger(without, all_of_it) > 0.9


def test_bootstraps_that_are_not_paired_are_refused(sweep):
    runs = sweep(8, runs=30)
    first = fit(runs, bootstrap=5)
    with pytest.raises(ValueError, match="no bootstraps: pass bootstrap="):
        probability_larger(first, fit(runs, bootstrap=0))
    with pytest.raises(ValueError, match="no bootstraps: pass bootstrap="):
        probability_larger(fit(runs, bootstrap=0), first)
    with pytest.raises(ValueError, match="not paired"):
        probability_larger(first, fit(runs, seed=2, bootstrap=5))
    with pytest.raises(ValueError, match="5 bootstraps of 30 runs against 6 bootstraps of 30"):
        probability_larger(first, fit(runs, bootstrap=6))
    with pytest.raises(ValueError, match="30 runs against 5 bootstraps of 29 runs"):
        probability_larger(first, fit([column[1:] for column in runs], bootstrap=5))
