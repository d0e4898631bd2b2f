from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_rgb

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
    assert [star.get_xdata()[0] for star in stars] == found.compute.tolist()
    assert [len(line.get_xdata()) for line in left.lines[0::3]] == [7, 7, 7]
    for parabola, lowest, params, loss in zip(
        left.lines[1::3], left.lines[2::3], found.params, found.loss, strict=True
    ):
        assert [list(values) for values in lowest.get_data()] == [[params], [loss]]
        assert min(parabola.get_ydata()) == pytest.approx(loss, rel=1e-4)  # of its own parabola
    colors = [[line.get_color() for line in left.lines[kind::3]] for kind in (0, 1)]
    assert colors[0] == colors[1] == [star.get_color() for star in stars]
    assert len(set(colors[0])) == 3
    assert sum(to_rgb(colors[0][0])) < sum(to_rgb(colors[0][2]))  # dark: the small budget
    assert {line.get_marker() for line in [*stars, *left.lines[2::3]]} == {"*"}
    scales = [(axes.get_xscale(), axes.get_yscale()) for axes in (left, right)]
    assert scales == [("log", "linear"), ("log", "log")]
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in (left, right)]
    assert labels == [("parameters", "loss, nats"), ("compute, FLOPs", "parameters")]
    assert right.get_title() == f"N ~ C^{found.a:.3f}"
    key = frontier(found).legends[0]
    assert [text.get_text() for text in key.get_texts()] == ["1e+18", "1e+19", "1e+20"]
    assert key.get_title().get_text() == "FLOPs"
    assert left.words == (
        "Loss over parameters, one parabola for each of 3 budgets from 1e+18 to 1e+20 FLOPs."
    )
    assert f"for 3 budgets from 1e+18 to 1e+20 FLOPs, and the line N ~ C^{found.a:.2f};" in (
        right.words
    )
    np.testing.assert_allclose(line.get_ydata()[[0, -1]], found.optimal(found.compute[[0, -1]])[0])


def test_runs_belong_to_the_nearest_budget():
    compute = np.array([1.25e18, 2e18])
    runs = np.tile([1e8, 2e8, 4e8], 2), 1.01 * np.repeat(compute, 3), np.arange(6.0)
    picture = frontier(SimpleNamespace(
        parabolas=[(1, 0, 0)] * 2, compute=compute, params=[2e8] * 2, loss=[1, 1], runs=runs,
        a=0.5, optimal=lambda c: (c, None),
    ))  # fmt: skip
    dots = picture.axes[0].lines[0::3]
    assert [list(line.get_ydata()) for line in dots] == [[0, 1, 2], [3, 4, 5]]
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["1.25e+18", "2e+18"]


def test_a_frontier_without_parabolas_is_one_plot():
    found = SimpleNamespace(
        parabolas=(), compute=np.array([1e20, 1e18]), params=[2e9, 2e8], a=0.5,
        optimal=lambda c: (0.2 * np.sqrt(c), None),
    )  # fmt: skip
    (axes,) = frontier(found).axes
    assert "for 2 budgets from 1e+18 to 1e+20 FLOPs" in axes.words
    *dots, line = axes.lines
    assert [dot.get_data() for dot in dots] == [([1e20], [2e9]), ([1e18], [2e8])]
    assert {dot.get_marker() for dot in dots} == {"."}
    assert [line.get_xdata()[k] for k in (0, -1)] == pytest.approx([1e18, 1e20])
    assert [line.get_ydata()[k] for k in (0, -1)] == pytest.approx([2e8, 2e9])


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
    assert sum(dots.cmap(0.0)[:3]) < sum(dots.cmap(1.0)[:3])  # darker: smaller, as the words say
    (line,) = fit_quality([1e6, 1e8], [3.0, 1.9], [2.8, 2.0]).axes[0].lines
    assert list(line.get_xdata()) == list(line.get_ydata()) == [1.9, 3.0]
    (half,) = fit_quality([1], [1], [1], [0.4, 0.4, 0.45]).axes[1].lines
    assert list(half.get_xdata()) == [0.5, 0.5]
    left, right = picture.axes[:2]
    assert right.words == (
        "A histogram of the exponent a over 201 bootstraps; nine in ten lie between 0.32 and 0.68. "
        "A line marks 0.5."
    )
    assert left.words.startswith("Fitted over observed loss of 2 runs, 2 to 3.1 nats, with the")
    assert (left.get_xlabel(), left.get_ylabel()) == ("loss, nats", "fitted loss, nats")
    assert (right.get_xlabel(), right.get_ylabel()) == ("a, of N ~ C^a", "bootstraps")
    assert list(right.lines[0].get_xdata()) == [0.5, 0.5]
    assert sum(bar.get_height() for bar in right.patches) == 201
    assert picture.axes[2].get_ylabel() == "log10 of the parameters"
    assert picture.get_size_inches()[0] > fit_quality([1], [1], [1]).get_size_inches()[0]
