import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from helpers.scaling.law import BESIROGLU, HOFFMANN_UNROUNDED
from helpers.scaling.planning import (
    MUENNIGHOFF,
    R_D,
    R_N,
    best_epochs,
    best_params,
    effective,
    plan,
    repeated_loss,
    with_inference,
)


def test_a_plan_adds_up():
    made = plan(BESIROGLU, 1e24, gpus=1000, peak=1e15, mfu=0.4, price=2.0)
    assert made.days == pytest.approx(1e24 / 4e17 / 86_400)
    assert made.dollars == pytest.approx(made.days * 24 * 1000 * 2)
    assert (made.params, made.tokens) == BESIROGLU.optimal(1e24)
    smaller = plan(BESIROGLU, 1e24, gpus=1000, peak=1e15, mfu=0.4, price=2.0, params=1e10)
    assert smaller.loss > made.loss
    assert smaller.tokens == pytest.approx(1e24 / 6e10)
    with pytest.raises(ValueError, match="mfu"):
        plan(BESIROGLU, 1e24, gpus=8, peak=1e15, mfu=40, price=2.0)
    assert (made.compute, made.loss) == (1e24, BESIROGLU.loss(made.params, made.tokens))
    assert (smaller.compute, smaller.params) == (1e24, 1e10)
    right = {"gpus": 8, "peak": 1e15, "mfu": 1.0, "price": 2.0}
    assert plan(BESIROGLU, 1e24, **right).days == pytest.approx(1e24 / 8e15 / 86_400)
    for name in (*right, "params"):
        with pytest.raises(ValueError, match=f"^{name} must be positive"):
            plan(BESIROGLU, 1e24, **right | {name: 0})
    with pytest.raises(ValueError, match=r"^compute must be positive"):
        plan(BESIROGLU, -1e24, **right)


def test_without_demand_the_plan_is_chinchillas():
    params, tokens = BESIROGLU.optimal(1e23)
    found = with_inference(BESIROGLU, BESIROGLU.loss(params, tokens), 0)
    assert found == (pytest.approx(params, rel=1e-9), pytest.approx(tokens, rel=1e-9))


@pytest.mark.parametrize("demand", [1e11, 1e13])
def test_with_demand_no_other_model_of_that_loss_is_cheaper(demand):
    goal = BESIROGLU.loss(*BESIROGLU.optimal(1e23))

    def cost(log_params):
        left = goal - BESIROGLU.E - BESIROGLU.A * np.exp(-BESIROGLU.alpha * log_params)
        tokens = (BESIROGLU.B / left) ** (1 / BESIROGLU.beta) if left > 0 else np.inf
        return np.log(np.exp(log_params)) + np.log(6 * tokens + 2 * demand)

    params, tokens = with_inference(BESIROGLU, goal, demand)
    assert BESIROGLU.loss(params, tokens) == pytest.approx(goal, rel=1e-12)
    low = np.log((BESIROGLU.A / (goal - BESIROGLU.E)) ** (1 / BESIROGLU.alpha)) + 0.01
    found = minimize_scalar(cost, bounds=(low, low + 10), method="bounded", options={"xatol": 1e-9})
    assert np.log(params) == pytest.approx(found.x, abs=1e-4)
    assert params < BESIROGLU.optimal(1e23)[0]  # smaller, trained longer


def test_demand_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="no model reaches"):
        with_inference(BESIROGLU, BESIROGLU.E, 1e12)
    for demand in (-1, np.inf, np.nan):
        with pytest.raises(ValueError, match="inference_tokens must be 0 or more"):
            with_inference(BESIROGLU, 2.5, demand)
    with pytest.raises(ValueError, match="no model reaches"):
        with_inference(BESIROGLU, np.nan, 1e12)


def test_repeated_tokens_count_for_less():
    """Muennighoff et al. 2023, arXiv:2305.16264.

    Four epochs are nearly as good as new data. R* repetitions are worth 1 - 1/e of as many new
    tokens.
    """
    assert effective(1e9, 0.5e9) == 0.5e9
    assert effective(1e9, 1e9) == 1e9
    assert effective(1e9, 4e9) > 0.9 * 4e9
    assert effective(1e9, 1e9 * (1 + R_D)) == pytest.approx(1e9 * (1 + R_D * (1 - np.exp(-1))))
    assert effective(1e9, 1e15) == pytest.approx(1e9 * (1 + R_D))
    several = effective(1e9, np.array([0.5e9, 4e9]))
    assert several.tolist() == [effective(1e9, 0.5e9), effective(1e9, 4e9)]
    # the paper's appendix A: R*_D = 15.39 and R*_N = 5.31
    assert (round(R_D, 2), round(R_N, 2)) == (15.39, 5.31)
    for wrong in ((0, 1e9), (1e9, -1)):
        with pytest.raises(ValueError, match="must be positive"):
            effective(*wrong)


def test_new_data_give_chinchillas_loss_again():
    params, tokens = MUENNIGHOFF.optimal(1e21)
    assert best_params(MUENNIGHOFF, tokens) == pytest.approx(params, rel=1e-9)
    assert repeated_loss(params, tokens, tokens) == pytest.approx(MUENNIGHOFF.loss(params, tokens))
    assert repeated_loss(params, tokens, tokens / 10) > repeated_loss(params, tokens, tokens)


def test_surplus_parameters_count_for_less():
    """R*_N times more parameters than the best number are worth 1 - 1/e of as many."""
    params, tokens = MUENNIGHOFF.optimal(1e21)
    worth = params * (1 + R_N * (1 - np.exp(-1)))
    found = repeated_loss(params * (1 + R_N), tokens, tokens)
    assert found == pytest.approx(MUENNIGHOFF.loss(worth, tokens), rel=1e-9)


def test_with_few_data_the_best_model_is_smaller_and_sees_them_more_often():
    compute = 1e22
    plenty, tokens = MUENNIGHOFF.optimal(compute)
    assert best_epochs(compute, 100 * tokens)[0] == pytest.approx(plenty, rel=1e-4)
    params, seen = best_epochs(compute, tokens / 20)
    assert 6 * params * seen == pytest.approx(compute)
    assert params < plenty  # R*_D > R*_N: more epochs pay off sooner than more parameters
    best = repeated_loss(params, seen, tokens / 20)
    for factor in (0.8, 0.95, 1.05, 1.25):
        assert repeated_loss(params * factor, seen / factor, tokens / 20) > best


def test_the_law_of_repeated_data_is_the_paper_s():
    """Appendix A: 1.87 + 521/N^0.353 + 1488/D^0.353."""
    law = MUENNIGHOFF
    assert (round(law.E, 2), round(law.A), round(law.B)) == (1.87, 521, 1488)
    assert law.alpha == law.beta == 0.3526596


@pytest.mark.parametrize("unique", [2e9, 1e13])
def test_another_law_may_be_given(unique):
    """The sum of its own terms, for effective data and parameters; the best of a fine grid."""
    law = HOFFMANN_UNROUNDED
    sizes = np.geomspace(1e8, 1e12, 40_001)
    best = best_params(law, unique)
    assert law.optimal(law.compute_for(best))[1] == pytest.approx(unique, rel=1e-9)
    tokens = 1e22 / 6 / sizes
    more = np.maximum(sizes / best - 1, 0)
    worth = np.minimum(sizes, best) + best * R_N * (1 - np.exp(-more / R_N))
    again = np.maximum(tokens / unique - 1, 0)
    seen = np.minimum(tokens, unique) + unique * R_D * (1 - np.exp(-again / R_D))
    losses = law.E + law.A / worth**law.alpha + law.B / seen**law.beta
    assert repeated_loss(sizes, tokens, unique, law=law) == pytest.approx(losses, rel=1e-12)
    params, _ = best_epochs(1e22, unique, law=law)
    assert params == pytest.approx(sizes[losses.argmin()], rel=1e-3)
