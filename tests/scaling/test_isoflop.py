import numpy as np
import pytest

from helpers.scaling.isoflop import envelope, isoflop
from helpers.scaling.law import BESIROGLU

BUDGETS = np.logspace(18, 21, 7)


def runs(noise=0.0, seed=0, width=1.0):
    """Nine sizes around each budget's best."""
    best = np.array([BESIROGLU.optimal(c)[0] for c in BUDGETS])
    params = (best[:, None] * np.exp(np.linspace(-width, width, 9))).ravel()
    compute = np.repeat(BUDGETS, 9)
    wobble = np.random.default_rng(seed).normal(size=len(params))
    return params, compute, BESIROGLU.loss(params, compute / 6 / params) * np.exp(noise * wobble)


def test_parabolas_find_the_laws_exponent():
    fit = isoflop(*runs())
    a, b = BESIROGLU.exponents
    assert (fit.a, fit.b) == (pytest.approx(a, abs=1e-3), pytest.approx(b, abs=1e-3))
    best, _ = BESIROGLU.optimal(BUDGETS)
    np.testing.assert_allclose(fit.params, best, rtol=0.02)  # a parabola is not quite the valley
    np.testing.assert_allclose(6 * fit.params * fit.tokens, fit.compute, rtol=1e-12)
    params, tokens = fit.optimal(1e20)
    assert 6 * params * tokens == pytest.approx(1e20)


def test_with_noise_the_exponent_is_near():
    errors = [isoflop(*runs(0.002, seed)).a - BESIROGLU.exponents[0] for seed in range(20)]
    assert np.std(errors) < 0.03
    assert abs(np.mean(errors)) < 3 * np.std(errors) / np.sqrt(20)


def test_the_order_of_the_runs_does_not_matter():
    order = np.random.default_rng(0).permutation(63)
    assert isoflop(*(v[order] for v in runs())).a == pytest.approx(isoflop(*runs()).a, rel=1e-9)


def test_a_parabolas_coefficients_are_of_log_params():
    params, compute, loss = runs()
    fit = isoflop(params, compute, loss)
    c0, c1, c2 = fit.parabolas[2]
    x = np.log(params[compute == BUDGETS[2]])
    np.testing.assert_allclose(c0 + c1 * x + c2 * x**2, loss[compute == BUDGETS[2]], rtol=1e-2)


def test_budgets_without_a_minimum_are_refused():
    params, compute, loss = runs()
    small = params < 0.9 * np.repeat(BESIROGLU.optimal(BUDGETS)[0], 9)
    with pytest.raises(ValueError, match="no minimum between its sizes"):
        isoflop(params[small], compute[small], loss[small])
    with pytest.raises(ValueError, match="fewer than three sizes"):
        isoflop(params[:2], compute[:2], loss[:2])
    with pytest.raises(ValueError, match="row 3: compute"):
        isoflop(params, np.where(np.arange(63) == 3, np.nan, compute), loss)


def test_the_envelope_finds_the_exponent():
    sizes = np.logspace(7, 10, 25)
    spent = [np.logspace(16, 22, 400)] * 25
    losses = [BESIROGLU.loss(n, c / 6 / n) for n, c in zip(sizes, spent, strict=True)]
    fit = envelope(sizes, spent, losses)
    # The envelope is where dL/dN = 0 at fixed C: the same optimum, in steps of the sizes.
    assert fit.a == pytest.approx(BESIROGLU.exponents[0], abs=0.01)
    with pytest.raises(ValueError, match="curve 1: compute must rise"):
        envelope(sizes[:2], [spent[0], spent[0][::-1]], losses[:2])
    with pytest.raises(ValueError, match="two curves"):
        envelope(sizes[:1], spent[:1], losses[:1])
