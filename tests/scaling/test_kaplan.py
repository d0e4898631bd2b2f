import numpy as np
import pytest

from helpers.scaling import kaplan


def test_marginal_and_joint_constants_are_apart():
    """Kaplan et al. 2020, arXiv:2001.08361, table 5 (separate fits) and table 2 (joint fit)."""
    assert (kaplan.L_N.scale, kaplan.L_N.exponent) == (8.8e13, 0.076)
    assert (kaplan.L_D.scale, kaplan.L_D.exponent) == (5.4e13, 0.095)
    assert (kaplan.L_C_MIN.scale, kaplan.L_C_MIN.exponent) == (3.1e8, 0.05)
    assert (kaplan.B_CRIT.scale, kaplan.B_CRIT.exponent) == (2.1e8, 0.21)
    joint = kaplan.L_ND
    assert (joint.N_c, joint.D_c, joint.alpha_N, joint.alpha_D) == (6.4e13, 1.8e13, 0.076, 0.103)


def test_the_joint_law_ends_in_power_laws():
    joint = kaplan.L_ND
    assert joint(1e9, 1e30) == pytest.approx((6.4e13 / 1e9) ** 0.076, rel=1e-6)
    assert joint(1e30, 1e9) == pytest.approx((1.8e13 / 1e9) ** 0.103, rel=1e-6)


def test_eight_times_the_model_needs_five_times_the_data():
    """Section 4.3."""
    assert kaplan.enough_tokens(8e9) / kaplan.enough_tokens(1e9) == pytest.approx(5, rel=0.08)
    # the same section: WebText2 with its 22B tokens is enough for models up to 1e9 parameters
    assert kaplan.enough_tokens(1e9) == pytest.approx(22e9, rel=0.05)


def test_the_loss_of_steps_ends_in_power_laws():
    """Table 3, equation 1.6: an endless training, and an endless model."""
    assert kaplan.loss_of_steps(1e9, 1e40) == pytest.approx((6.5e13 / 1e9) ** 0.077, rel=1e-9)
    assert kaplan.loss_of_steps(1e250, 1e4) == pytest.approx((2.1e3 / 1e4) ** 0.76, rel=1e-9)
    assert kaplan.loss_of_steps(6.5e13, 2.1e3) == 2


def test_a_law_of_compute_counts_in_pf_days():
    """GPT-3 took 3.14e23 FLOPs, or 3640 PF-days (Brown et al. 2020, table D.1)."""
    assert pytest.approx(3640, rel=2e-3) == 3.14e23 / kaplan.PF_DAY
    assert (kaplan.L_C_NAIVE.scale, kaplan.L_C_NAIVE.exponent) == (1.6e7, 0.057)
    assert kaplan.L_C_NAIVE(1.6e7) == kaplan.L_C_MIN(3.1e8) == 1


def test_allocation_of_table_6():
    params, tokens = kaplan.optimal(np.array([1.0, 10.0]))
    assert params.tolist() == pytest.approx([1.3e9, 1.3e9 * 10**0.73])
    assert tokens.tolist() == pytest.approx([2e10, 2e10 * 10**0.27])


def test_critical_batch_trades_steps_for_compute():
    """(S/S_min - 1)(E/E_min - 1) = 1: equation 5.1; at the critical batch S and E both double."""
    loss = 2.5
    critical = kaplan.B_CRIT(loss)
    for batch in (critical / 7, critical, 30 * critical):
        steps, examples = 1e4, 1e4 * batch
        s = steps / kaplan.B_CRIT.least_steps(steps, batch, loss)
        e = examples / kaplan.B_CRIT.least_compute(examples, batch, loss)
        assert (s - 1) * (e - 1) == pytest.approx(1, rel=1e-9)
    assert kaplan.B_CRIT.least_steps(100, critical, loss) == pytest.approx(50)


def test_fits_give_back_what_made_the_data():
    x = np.logspace(6, 9, 12)
    fit = kaplan.fit_power_law(x, kaplan.L_N(x))
    assert (fit.scale, fit.exponent) == (pytest.approx(8.8e13), pytest.approx(0.076))
    n, d = (g.ravel() for g in np.meshgrid(np.logspace(6, 9.5, 8), np.logspace(7, 10.5, 8)))
    joint = kaplan.fit_joint(n, d, kaplan.L_ND(n, d))
    for name in ("N_c", "D_c", "alpha_N", "alpha_D"):
        assert getattr(joint, name) == pytest.approx(getattr(kaplan.L_ND, name), rel=1e-5)
    noise = np.exp(0.005 * np.random.default_rng(0).normal(size=len(n)))
    noisy = kaplan.fit_joint(n, d, kaplan.L_ND(n, d) * noise)
    assert noisy.alpha_N == pytest.approx(0.076, abs=0.003)
    assert noisy.alpha_D == pytest.approx(0.103, abs=0.005)


def test_of_several_starts_the_lowest_end_counts():
    """x^2 = 1 at both ends, and x = 1 at one of them only."""

    def residuals(x):
        return np.array([x[0] ** 2 - 1, 0.1 * (x[0] - 1)])

    for starts in ([[-1.0], [1.0]], [[1.0], [-1.0]]):
        assert kaplan.lowest(residuals, starts) == pytest.approx([1.0])


def test_the_critical_batch_is_found_from_steps_at_several_batches():
    """First fit S_min and B_crit to the steps at several batches; then fit the law over losses."""
    rng, batches = np.random.default_rng(0), np.geomspace(1e4, 1e8, 9)
    losses, found = np.array([2.0, 2.5, 3.0, 4.0]), []
    for loss in losses:
        steps = 700 * (1 + kaplan.B_CRIT(loss) / batches)
        least, critical = kaplan.fit_trade_off(batches, steps)
        assert (least, critical) == (pytest.approx(700), pytest.approx(kaplan.B_CRIT(loss)))
        assert kaplan.fit_trade_off(batches[::-1], steps[::-1]) == pytest.approx((least, critical))
        noisy = kaplan.fit_trade_off(batches, steps * np.exp(0.02 * rng.normal(size=9)))
        assert noisy == pytest.approx((least, critical), rel=0.1)
        found.append(critical)
    law = kaplan.fit_critical_batch(losses, found)
    assert (law.scale, law.exponent) == (pytest.approx(2.1e8), pytest.approx(0.21))


def test_wrong_input_is_refused():
    for calculate, name in (
        (lambda: kaplan.PowerLaw(scale=0, exponent=1), "scale"),
        (lambda: kaplan.PowerLaw(scale=1, exponent=-1), "exponent"),
        (lambda: kaplan.JointLaw(N_c=1, D_c=0, alpha_N=1, alpha_D=1), "D_c"),
        (lambda: kaplan.JointLaw(N_c=1, D_c=1, alpha_N=1, alpha_D=0), "alpha_D"),
        (lambda: kaplan.L_N(0), "x"),
        (lambda: kaplan.L_ND(1e9, 0), "tokens"),
        (lambda: kaplan.B_CRIT(-1), "loss"),
        (lambda: kaplan.B_CRIT.least_steps(1, 0, 2), "batch"),
        (lambda: kaplan.B_CRIT.least_compute(0, 1, 2), "compute"),
        (lambda: kaplan.loss_of_steps(1e9, 0), "steps"),
        (lambda: kaplan.optimal(0), "pf_days"),
    ):
        with pytest.raises(ValueError, match=f"^{name} must be positive"):
            calculate()
    with pytest.raises(ValueError, match="at least two losses"):
        kaplan.fit_critical_batch([2, 2.01], [10, 9])
    with pytest.raises(ValueError, match="two batch sizes"):
        kaplan.fit_trade_off([8, 8], [10, 11])
    with pytest.raises(ValueError, match="steps do not fall"):
        kaplan.fit_trade_off([8, 16], [10, 11])
    with pytest.raises(ValueError, match="steps do not fall"):  # all runs count
        kaplan.fit_trade_off([8, 16, 32, 64], [10, 20, 30, 9.9])
    with pytest.raises(ValueError, match="row 1: critical"):
        kaplan.fit_critical_batch([2, 3], [10, 0])
    with pytest.raises(ValueError, match="does not grow"):
        kaplan.fit_critical_batch([2, 3], [10, 11])
    with pytest.raises(ValueError, match="row 1: loss"):
        kaplan.fit_power_law([1, 2, 3], [3, -1, 2])
    with pytest.raises(ValueError, match="does not fall"):
        kaplan.fit_power_law([1, 2, 3], [1, 2, 3])
    with pytest.raises(ValueError, match="two sizes"):
        kaplan.fit_power_law([5, 5], [1, 2])
    with pytest.raises(ValueError, match="four runs"):
        kaplan.fit_joint([1, 2], [1, 2], [3, 2])
    for params, tokens in (([5] * 4, [1, 2, 3, 4]), ([1, 2, 3, 4], [5] * 4)):
        with pytest.raises(ValueError, match="two sizes of params and of tokens"):
            kaplan.fit_joint(params, tokens, [5, 4, 3, 2])
