import numpy as np
import pytest

from helpers.scaling.counting import Family, bent_exponent, kaplan_optimal
from helpers.scaling.law import BESIROGLU, HOFFMANN_UNROUNDED


def test_a_family_adds_its_embeddings():
    family = Family(vocab=50_257, context=1024, aspect=64)
    assert family.total(12 * 768**3 / 64) == pytest.approx(12 * 768**3 / 64 + 51_281 * 768)
    assert family.non_embedding(family.total(3e7)) == pytest.approx(3e7, rel=1e-9)
    assert Family() == family  # GPT-2's embeddings


@pytest.mark.parametrize("law", [BESIROGLU, HOFFMANN_UNROUNDED])
def test_leaving_the_embeddings_out_raises_the_exponent(law):
    """Kaplan's sizes are 768 to 1.5B parameters without embeddings (section 2).

    Small models bend the exponent most. Large models have few embeddings, so the law's own exponent
    comes back.
    """
    true = law.exponents[0]
    bent = bent_exponent(law, Family(), 768, 1.5e9)
    assert bent > true + 0.1
    assert bent_exponent(law, Family(), 768, 1e7) > bent_exponent(law, Family(), 1e9, 1e11) > true
    assert bent_exponent(law, Family(), 1e15, 1e16) == pytest.approx(true, abs=5e-3)
    none = Family(vocab=1, context=1)
    assert bent_exponent(law, none, 1e9, 1e11) == pytest.approx(true, abs=1e-3)


@pytest.mark.parametrize("compute", [1e15, 1e21])
def test_the_budget_buys_tokens_for_the_counted_parameters(compute):
    """N and C both leave out the embeddings; the loss is that of the whole model."""
    family, sizes = Family(), np.geomspace(1e2, 1e12, 20_001)
    losses = BESIROGLU.loss(family.total(sizes), compute / (6 * sizes))
    found = kaplan_optimal(BESIROGLU, family, compute)
    assert found == pytest.approx(sizes[np.argmin(losses)], rel=2e-3)


def test_the_bent_exponent_is_the_slope_of_the_exact_optimum():
    """dL/dN = 0 gives the tokens, and so the budget, for which a size is the best."""
    law, family = BESIROGLU, Family(vocab=30_000, context=500, aspect=40)
    sizes = np.geomspace(1e2, 1e13, 20_001)
    whole = family.total(sizes)
    grows = 1 + (whole - sizes) / (3 * sizes)  # the embeddings grow as the cube root of N
    slope = law.alpha * law.A * whole ** (-law.alpha - 1) * grows
    compute = 6 * sizes * (law.B * law.beta / (sizes * slope)) ** (1 / law.beta)
    small, large = 2e4, 3e8
    ends = [
        np.log(6 * n * law.optimal(law.compute_for(family.total(n)))[1]) for n in (small, large)
    ]
    at = np.linspace(*ends, 25)
    best = np.interp(at, np.log(compute), np.log(sizes))
    exact = np.polyfit(at, best, 1)[0]
    assert bent_exponent(law, family, small, large) == pytest.approx(exact, abs=1e-4)


def test_sizes_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="below large"):
        bent_exponent(BESIROGLU, Family(), 1e9, 1e6)
    for calculate, name in (
        (lambda: bent_exponent(BESIROGLU, Family(), 0, 1e6), "small"),
        (lambda: kaplan_optimal(BESIROGLU, Family(), -1.0), "compute"),
        (lambda: Family().total([1e6, 0]), "non_embedding"),
        (lambda: Family().non_embedding(0), "total"),
    ):
        with pytest.raises(ValueError, match=f"^{name} must be positive"):
            calculate()
