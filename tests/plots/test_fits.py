"""What fits: a curve for each way, over the ranks, with the models as guides."""

import pytest
from matplotlib.colors import to_rgb

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
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("ranks", "largest model, parameters")
    assert 175e9 in [line.get_ydata()[0] for line in axes.lines]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(SIZES)
    axes.figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1
    assert repr(picture).startswith("80 GB")
    assert len(picture._repr_png_()[0]) < 60_000


def test_a_guide_above_all_curves_is_on_the_picture():
    axes = plots.what_fits(SIZES, models={"1T": 1e12}).axes[0]
    assert axes.get_ylim()[1] > 1e12
    axes = plots.what_fits({"a": {1: 2e14}}, models={"small": 1e6}).axes[0]
    assert axes.get_ylim()[0] < 1e6
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["100M", "1B", "10B", "100B", "1T", "10T", "100T"]
    assert axes.get_title() == ""
    axes = plots.what_fits({"a": {1: 2e9, 2: 5e10}}).axes[0]  # the axis ends at 1B and 100B
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1B", "10B", "100B"]


def test_ways_have_colours_of_their_own():
    """From dark to light: each way shards more than the one before."""
    lines = plots.what_fits(SIZES).axes[0].lines
    first, second = (to_rgb(line.get_color()) for line in lines)
    assert sum(first) < sum(second)


def test_every_number_of_ranks_has_a_tick_and_each_way_its_own():
    sizes = {"a": {8: 3e8, 2: 1e8}, "b": {4: 2e13}}
    picture = plots.what_fits(sizes, width=5, height=4)
    (axes,) = picture.axes
    assert list(axes.get_xticks()) == [2, 4, 8]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["100M", "1B", "10B", "100B", "1T", "10T"]
    assert list(axes.get_yticks()) == [1e8, 1e9, 1e10, 1e11, 1e12, 1e13]
    assert [list(line.get_xdata()) for line in axes.lines] == [[8, 2], [4]]
    assert tuple(picture.get_size_inches()) == (5, 4)
    two = plots.panels(2)
    assert plots.what_fits(sizes, on=two.axes[1], alt="Mine.") is two
    assert two.axes[1].words == "Mine."
    assert not two.axes[0].lines


@pytest.mark.parametrize("sizes", [{}, {"a": {}}, {"a": {1: 0.0}}, {"a": {1: 1e9, 2: 0.0}}])
def test_what_cannot_be_drawn(sizes):
    with pytest.raises(ValueError, match="positive"):
        plots.what_fits(sizes)


def test_the_axis_is_twice_as_far_as_what_is_shown():
    assert plots.what_fits(SIZES).axes[0].get_ylim() == pytest.approx((2.5e9, 640e9))
