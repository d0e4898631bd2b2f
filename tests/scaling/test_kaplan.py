import numpy as np
import pytest

from helpers.scaling import kaplan


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
        (lambda: kaplan.fit_power_law([5, 5], [1, 2]), "two sizes"),
    ],
)
def test_wrong_input_is_refused(calculate, message):
    with pytest.raises(ValueError, match=message):
        calculate()
