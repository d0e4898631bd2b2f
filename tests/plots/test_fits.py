"""What fits: a curve for each way, over the ranks, with the models as guides."""

import pytest

from helpers import plots

SIZES = {"stage 1": {1: 5e9, 64: 19e9}, "stage 3": {1: 5e9, 64: 320e9}}


def test_curves_and_guides():
    picture = plots.what_fits(SIZES, models={"GPT-3": 175e9}, title="80 GB")
    axes = picture.axes[0]
    curves = {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}
    assert list(curves["stage 3"].get_xdata()) == [1, 64]
    assert list(curves["stage 3"].get_ydata()) == [5e9, 320e9]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "64"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["10B", "100B"]
    assert [text.get_text() for text in axes.texts] == ["GPT-3"]
    low, high = axes.get_ylim()
    assert low < 5e9 < 320e9 < high
    assert repr(picture).startswith("80 GB")
    assert len(picture._repr_png_()[0]) < 60_000


def test_a_guide_above_all_curves_is_on_the_picture():
    axes = plots.what_fits(SIZES, models={"1T": 1e12}).axes[0]
    assert axes.get_ylim()[1] > 1e12


def test_ways_have_colours_of_their_own():
    lines = plots.what_fits(SIZES).axes[0].lines
    assert len({line.get_color() for line in lines}) == 2


@pytest.mark.parametrize("sizes", [{}, {"a": {}}, {"a": {1: 0.0}}, {"a": {1: 1e9, 2: 0.0}}])
def test_what_cannot_be_drawn(sizes):
    with pytest.raises(ValueError, match="positive"):
        plots.what_fits(sizes)
