"""Fits to the small half of the runs, compared with the large half."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.scaling.extrapolation import extrapolate
from helpers.scaling.law import BESIROGLU
from helpers.scaling.search import grid


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
