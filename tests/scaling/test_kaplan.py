import numpy as np
import pytest

from helpers.scaling import kaplan
from helpers.scaling.kaplan import Family, bent_exponent, kaplan_optimal
from helpers.scaling.law import BESIROGLU, HOFFMANN_UNROUNDED


def test_the_published_constants():
    """Kaplan et al. 2020, tables 5 and 6. GPT-3 took 3.14e23 FLOPs, or 3640 PF-days (Brown et al.
    2020, table D.1).
    """
    assert (kaplan.L_N.scale, kaplan.L_N.exponent) == (8.8e13, 0.076)
    assert kaplan.L_N(8.8e13) == 1
    assert kaplan.L_N(np.array([8.8e12, 8.8e13])).tolist() == pytest.approx([10**0.076, 1])
    assert pytest.approx(3640, rel=2e-3) == 3.14e23 / kaplan.PF_DAY
    params, tokens = kaplan.optimal(np.array([1.0, 10.0]))
    assert params.tolist() == pytest.approx([1.3e9, 1.3e9 * 10**0.73])
    assert tokens.tolist() == pytest.approx([2e10, 2e10 * 10**0.27])


def test_a_fit_gives_back_what_made_the_data():
    x = np.logspace(6, 9, 12)
    fit = kaplan.fit_power_law(x, kaplan.L_N(x))
    assert (fit.scale, fit.exponent) == (pytest.approx(8.8e13), pytest.approx(0.076))
    # least squares of log L: noise at the ends turns the line as the normal equations say
    noise = np.exp([0.01, -0.02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.03])
    slope = np.polyfit(np.log(x), np.log(kaplan.L_N(x) * noise), 1)[0]
    assert kaplan.fit_power_law(x, kaplan.L_N(x) * noise).exponent == pytest.approx(-slope)


@pytest.mark.parametrize(
    ("calculate", "message"),
    [
        (lambda: kaplan.PowerLaw(scale=0, exponent=1), "^scale must be positive"),
        (lambda: kaplan.PowerLaw(scale=1, exponent=-1), "^exponent must be positive"),
        (lambda: kaplan.L_N(0), "^x must be positive"),
        (lambda: kaplan.optimal(0), "^pf_days must be positive"),
        (lambda: kaplan.fit_power_law([1, 2, 3], [3, -1, 2]), "row 1: loss"),
        (lambda: kaplan.fit_power_law([1, 2, 3], [1, 2, 3]), "does not fall"),
        (lambda: kaplan.fit_power_law([1, 2], [1, 1]), "does not fall"),
        (lambda: kaplan.fit_power_law([5, 5], [1, 2]), "two sizes"),
    ],
)
def test_wrong_input_is_refused(calculate, message):
    with pytest.raises(ValueError, match=message):
        calculate()


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
    for small in (1e9, 1e6):
        with pytest.raises(ValueError, match="below large"):
            bent_exponent(BESIROGLU, Family(), small, 1e6)
    for calculate, name in (
        (lambda: bent_exponent(BESIROGLU, Family(), 0, 1e6), "small"),
        (lambda: kaplan_optimal(BESIROGLU, Family(), -1.0), "compute"),
        (lambda: Family().total([1e6, 0]), "non_embedding"),
        (lambda: Family().non_embedding(0), "total"),
    ):
        with pytest.raises(ValueError, match=f"^{name} must be positive"):
            calculate()
