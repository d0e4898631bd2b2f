import numpy as np

from helpers.plots.scaling import frontier
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
