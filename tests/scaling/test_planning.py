import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from helpers.scaling.law import BESIROGLU
from helpers.scaling.planning import MODELS, plan, with_inference


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
    for loss in (BESIROGLU.E, np.inf, np.nan):
        with pytest.raises(ValueError, match="no model reaches"):
            with_inference(BESIROGLU, loss, 1e12)
    for demand in (-1, np.inf, np.nan):
        with pytest.raises(ValueError, match="inference_tokens must be 0 or more"):
            with_inference(BESIROGLU, 2.5, demand)


def test_models_are_points():
    by_name = {model.name: model for model in MODELS}
    assert len(by_name) == len(MODELS)
    assert all("arXiv:" in model.source for model in MODELS)
    # Brown et al. 2020, table D.1: 3.14e23 FLOPs for GPT-3 (its 174.6B parameters rounded up here)
    assert by_name["GPT-3"].compute == pytest.approx(3.14e23, rel=0.01)
    # Grattafiori et al. 2024, section 1: 3.8e25 FLOPs
    assert by_name["Llama 3 405B"].compute == pytest.approx(3.8e25, rel=0.01)
    assert by_name["Chinchilla"].tokens_per_param == 20
    ratios = {name: round(model.tokens_per_param, 1) for name, model in by_name.items()}
    assert ratios == {
        "GPT-3": 1.7, "Gopher": 1.1, "Chinchilla": 20, "Llama 1 7B": 149.3, "Llama 1 65B": 21.5,
        "Llama 2 7B": 285.7, "Llama 2 70B": 28.6, "Llama 3 405B": 38.5,
    }  # fmt: skip
    # their tables print these many FLOPs, or these many tokens for the size in the name
    for name, model in by_name.items():
        if name.endswith("B"):
            assert model.params == pytest.approx(1e9 * float(name.split()[-1][:-1]), rel=0.05)
