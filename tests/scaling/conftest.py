"""Synthetic runs of a sweep, made from known coefficients."""

import numpy as np
import pytest

from helpers.scaling.law import BESIROGLU


def sweep(seed, runs=240, noise=0.02, law=BESIROGLU):
    """(params, tokens, loss) in the ranges of Hoffmann et al.'s figure 4; heavy-tailed noise."""
    rng = np.random.default_rng(seed)
    params = 10 ** rng.uniform(7.6, 10.2, 8 * runs)
    tokens = 10 ** rng.uniform(18.5, 21.5, 8 * runs) / 6 / params
    some = np.flatnonzero(tokens > 3e8)[:runs]
    params, tokens = params[some], tokens[some]
    assert len(params) == runs
    return params, tokens, law.loss(params, tokens) * np.exp(noise * rng.standard_t(4, runs))


@pytest.fixture(name="sweep")
def _sweep():
    return sweep
