import numpy as np

from helpers.plots.scaling import frontier
from helpers.scaling.chinchilla import fit_chinchilla
from helpers.scaling.isoflop import isoflop
from helpers.scaling.law import BESIROGLU
from helpers.scaling.published import MODELS
from helpers.scaling.search import grid

PNG = b"\x89PNG"
BUDGETS = np.repeat(np.logspace(18, 20, 3), 7)
PARAMS = np.tile(np.exp(np.linspace(-1, 1, 7)), 3) * BESIROGLU.optimal(BUDGETS)[0]
LOSS = BESIROGLU.loss(PARAMS, BUDGETS / 6 / PARAMS)


def test_a_frontier_draws_itself_with_its_parabolas():
    found = isoflop(PARAMS, BUDGETS, LOSS)
    assert found._repr_png_().startswith(PNG)
    left, right = frontier(found, [(m.name, m.compute, m.params) for m in MODELS]).axes
    assert len(left.lines) == 9  # dots, parabola and minimum of three budgets
    np.testing.assert_allclose(right.lines[0].get_ydata(), found.params)
    assert {text.get_text() for text in right.texts} == {m.name for m in MODELS}


def test_a_fit_draws_itself_with_and_without_bootstraps():
    for bootstrap, count in ((0, 1), (10, 2)):
        fit = fit_chinchilla(
            PARAMS, BUDGETS / 6 / PARAMS, LOSS, bootstrap=bootstrap, starts=grid()[::100]
        )
        assert fit._repr_png_().startswith(PNG)
        assert len(fit.picture().axes) == count + 1  # and the colour bar
