import numpy as np

from helpers.plots.scaling import fit_quality, frontier
from helpers.scaling.chinchilla import fit_chinchilla
from helpers.scaling.isoflop import isoflop
from helpers.scaling.law import BESIROGLU
from helpers.scaling.search import grid

PNG = b"\x89PNG"
BUDGETS = np.repeat(np.logspace(18, 20, 3), 7)
PARAMS = np.tile(np.exp(np.linspace(-1, 1, 7)), 3) * BESIROGLU.optimal(BUDGETS)[0]
LOSS = BESIROGLU.loss(PARAMS, BUDGETS / 6 / PARAMS)


def test_a_frontier_draws_itself_with_its_parabolas():
    found = isoflop(PARAMS, BUDGETS, LOSS)
    assert found._repr_png_()[0].startswith(PNG)
    left, right = frontier(found).axes
    assert len(left.lines) == 9  # dots, parabola and minimum of three budgets
    for dots, parabola in zip(left.lines[0::3], left.lines[1::3], strict=True):
        # these losses are no exact parabolas, but within a hundredth of a nat
        fitted = np.interp(dots.get_xdata(), *parabola.get_data())
        np.testing.assert_allclose(fitted, dots.get_ydata(), atol=0.02)
    *stars, line = right.lines
    assert [star.get_ydata()[0] for star in stars] == found.params.tolist()
    np.testing.assert_allclose(line.get_ydata()[[0, -1]], found.optimal(found.compute[[0, -1]])[0])


def test_a_fit_draws_itself_with_and_without_bootstraps():
    for bootstrap, count in ((0, 1), (10, 2)):
        fit = fit_chinchilla(
            PARAMS, BUDGETS / 6 / PARAMS, LOSS, bootstrap=bootstrap, starts=grid()[::100]
        )
        assert fit._repr_png_()[0].startswith(PNG)
        assert len(fit.picture().axes) == count + 1  # and the colour bar


def test_colours_are_magnitudes_and_nine_in_ten_are_named():
    exponents = np.linspace(0.30, 0.70, 201)
    picture = fit_quality([1e6, 1e8], [3.0, 2.0], [3.1, 2.0], exponents)
    dots, lines = picture.axes[0].collections[0], picture.axes[0].lines
    assert dots.get_array().tolist() == [6, 8]
    assert dots.get_offsets().tolist() == [[3.0, 3.1], [2.0, 2.0]]
    assert [list(values) for values in lines[0].get_data()] == [[2.0, 3.1]] * 2
    assert "lie between 0.32 and 0.68" in picture.axes[1].words
