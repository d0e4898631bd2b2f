import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from helpers.scaling.law import (
    BESIROGLU,
    HOFFMANN,
    HOFFMANN_UNROUNDED,
    ChinchillaLaw,
    distinct,
    observations,
)

# Hoffmann et al. 2022, arXiv:2203.15556, table A3, approach 3: params, FLOPs, tokens.
TABLE_A3 = (
    (400e6, 2.21e19, 9.2e9),
    (1e9, 1.62e20, 27.1e9),
    (10e9, 2.46e22, 410.1e9),
    (67e9, 1.71e24, 4.1e12),
    (175e9, 1.26e24, 12.0e12),
    (280e9, 3.52e25, 20.1e12),
    (520e9, 1.36e26, 43.5e12),
    (1e12, 5.65e26, 94.1e12),
    (10e12, 8.55e28, 1425.5e12),
)


def test_one_printed_cell_contradicts_6nd():
    """All rows but one agree with C = 6 N D within rounding.

    Rounding is 1.2 % for 4.1T, and 3 % for the 67B and 280B sizes. The row of 175B prints 1.26e24,
    but 6 N D is 1.26e25.
    """
    off = [
        params for params, flops, tokens in TABLE_A3 if abs(6 * params * tokens / flops - 1) > 0.05
    ]
    assert off == [175e9]
    needed = 6 * 175e9 * 12.0e12
    assert needed == pytest.approx(1.26e25, rel=0.005)


def test_the_table_is_no_rounding_of_the_fits_coefficients():
    """The coefficients of approach 3 give 6 to 19 % more tokens than table A3.

    With the printed two digits of alpha and beta they give over 50 % more, because a small change
    of an exponent changes everything.
    """
    for params, _, tokens in TABLE_A3:
        needed = HOFFMANN_UNROUNDED.compute_for(params) / (6 * params)
        assert 1.06 < needed / tokens < 1.19
        assert HOFFMANN.compute_for(params) / (6 * params) / tokens > 1.5


def test_exponents_as_printed():
    """Table 2 of Hoffmann et al.: 0.46 and 0.54; Besiroglu et al.: 0.5126 (their section 3)."""
    assert np.round(HOFFMANN_UNROUNDED.exponents, 2).tolist() == [0.46, 0.54]
    assert BESIROGLU.exponents[0] == pytest.approx(0.5126, abs=1e-4)


def test_the_replication_agrees_with_20_tokens_a_parameter():
    """Chinchilla itself used 5.76e23 FLOPs, 70B parameters and 1.4T tokens.

    The replication's optimum is close to that (20 to 26 tokens a parameter). The original fit's is
    not (above 40).
    """
    params, tokens = BESIROGLU.optimal(5.76e23)
    assert 18 < tokens / params < 27
    params, tokens = HOFFMANN_UNROUNDED.optimal(5.76e23)
    assert tokens / params > 40


@pytest.mark.parametrize("law", [HOFFMANN, HOFFMANN_UNROUNDED, BESIROGLU])
@pytest.mark.parametrize("compute", [1e18, 5.76e23])
def test_the_optimum_is_the_lowest_loss_for_its_compute(law, compute):
    params, tokens = law.optimal(compute)
    assert 6 * params * tokens == pytest.approx(compute, rel=1e-12)
    assert law.compute_for(params) == pytest.approx(compute, rel=1e-9)

    def loss(x):
        return law.loss(np.exp(x), compute / 6 / np.exp(x))

    found = minimize_scalar(loss, bracket=(np.log(params) - 2, np.log(params) + 3))
    # nearer than that the loss is flat to rounding
    assert np.log(params) == pytest.approx(found.x, abs=1e-5)


def test_the_constants_are_the_papers():
    exact, rounded = vars(HOFFMANN_UNROUNDED), vars(HOFFMANN)
    digits = {"E": 2, "A": 1, "B": 1, "alpha": 2, "beta": 2}
    assert {name: round(exact[name], places) for name, places in digits.items()} == rounded
    besiroglu = {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}
    assert vars(BESIROGLU) == besiroglu


def test_a_number_gives_a_number_and_an_array_gives_an_array():
    made = [HOFFMANN.loss(1e9, 2e10), *HOFFMANN.optimal(1e21), HOFFMANN.compute_for(1e9)]
    assert {type(value) for value in [*made, HOFFMANN.G]} == {float}
    both = np.array([1e9, 1e10])
    assert HOFFMANN.loss(both, 2e10).tolist() == [HOFFMANN.loss(n, 2e10) for n in both]
    assert HOFFMANN.compute_for(both)[0] == pytest.approx(made[3])


def test_wrong_numbers_are_refused():
    right = {"E": 1, "A": 1, "B": 1, "alpha": 1, "beta": 1}
    for name in right:
        for value in (-1.0, np.nan, np.inf, *([] if name == "E" else [0.0])):
            with pytest.raises(ValueError, match=f"^{name} must be positive and finite"):
                ChinchillaLaw(**right | {name: value})
    assert ChinchillaLaw(**right | {"E": 0}).loss(4, 2) == 0.75
    with pytest.raises(ValueError, match="params must be positive and finite, not inf"):
        HOFFMANN.compute_for(np.inf)
    with pytest.raises(ValueError, match="tokens"):
        HOFFMANN.loss(1e9, [1e9, -1])
    with pytest.raises(ValueError, match="compute"):
        HOFFMANN.optimal(float("nan"))


def test_columns_come_back_as_arrays():
    params, loss = observations(params=[1, 2], loss=(3.5, 4))
    assert params.dtype == loss.dtype == np.float64
    assert (params.tolist(), loss.tolist()) == ([1.0, 2.0], [3.5, 4.0])


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])
def test_the_first_wrong_row_is_named(value):
    with pytest.raises(ValueError, match=r"row 1: loss is .*\(and 1 more rows\)"):
        observations(params=[1, 2, 3, 4], loss=[1, value, 2, value])


@pytest.mark.parametrize(
    "columns", [{"a": [1], "b": [1, 2]}, {"a": [], "b": []}, {"a": [[1.0]], "b": [[1.0]]}]
)
def test_lists_that_do_not_belong_together(columns):
    with pytest.raises(ValueError, match="equally long and not empty: a ") as error:
        observations(**columns)
    shapes = [f"{name} {np.shape(values)}" for name, values in columns.items()]
    assert str(error.value).endswith(": " + ", ".join(shapes))


def test_the_message_names_one_row_and_its_first_wrong_column():
    with pytest.raises(ValueError, match=r"^row 2: tokens is 0; it must be positive and finite$"):
        observations(params=[1, 2, 3], tokens=[1, 2, 0], loss=[1, 2, -1])


def test_values_that_hardly_differ_count_once():
    assert distinct(np.array([100.0, 101.0, 200.0, 199.0, 300.0])) == 3
    assert distinct(np.array([7.0])) == 1
    assert distinct(np.array([1.0, 1.021])) == 2
    # each is near the one before, but the last is not near the first
    assert distinct(np.array([1.031, 1.0, 1.015])) == 2
