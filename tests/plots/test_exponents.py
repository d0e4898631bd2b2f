"""A histogram over exponents, with the ranges of formats."""

import pytest
from matplotlib.colors import to_hex

from helpers.plots.exponents import histogram
from helpers.plots.panel import panels
from helpers.plots.style import SERIES_COLORS


def test_histogram():
    picture = histogram(
        {"gradients": {-20: 3, -1: 1}, "weights": {0: 1}},
        ranges={"fp16": (-24, -14, 15)},
        title="A model",
    )
    axes = picture.axes[0]
    heights = sorted(round(bar.get_height()) for group in axes.containers[:2] for bar in group)
    assert heights == [25, 75, 100]
    left, right = axes.containers[2][0], axes.containers[3][0]
    assert (left.get_x(), left.get_width()) == (-24, 10)  # subnormal
    assert (right.get_x(), right.get_width()) == (-14, 30)
    assert "most numbers at -20 (75 %)" in repr(picture)
    assert "fp16 from -24 to 15" in repr(picture)
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["gradients", "weights"]


def test_each_exponent_has_its_place_and_each_series_its_part_of_it():
    """The bars of exponent e stand between e and e + 1."""
    picture = histogram(
        {"a": {3: 1, 2: 1, 5: 2}, "b": {2: 7}}, ylabel="y", xlabel="x", ranges={"f": (0, 1, 9)}
    )
    (axes,) = picture.axes
    (two, three, five), (other,) = axes.containers[:2]
    assert [round(bar.get_height()) for bar in (two, three, five, other)] == [25, 25, 50, 100]
    for bar, exponent in ((two, 2), (three, 3), (five, 5), (other, 2)):
        assert exponent <= bar.get_x() < bar.get_x() + bar.get_width() <= exponent + 1
    assert two.get_x() + two.get_width() <= other.get_x()
    colors = [bar.get_facecolor() for bar in (two, three, five, other)]
    assert colors[0] == colors[1] == colors[2] != colors[3]
    (name,) = axes.texts
    light, normal = axes.containers[2][0], axes.containers[3][0]
    assert name.get_text() == "f"
    assert name.xy[1] == pytest.approx(light.get_y() + light.get_height() / 2)
    assert 100 < light.get_y() < axes.get_ylim()[1]  # above all bars, on the picture
    assert sum(light.get_facecolor()) > sum(normal.get_facecolor())
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("x", "y", "")
    assert repr(picture) == (
        "Histogram of exponents. a: exponents 2 to 5, most numbers at 5 (50 %); "
        "b: exponents 2 to 2, most numbers at 2 (100 %). Formats: f from 0 to 9."
    )


def test_ranges_stand_above_each_other():
    axes = histogram({"a": {0: 1}}, ranges={"f": (0, 1, 2), "g": (0, 1, 2)}).axes[0]
    low, high = axes.containers[1][0], axes.containers[3][0]
    assert low.get_y() + low.get_height() < high.get_y()
    assert high.get_y() + high.get_height() < axes.get_ylim()[1]
    assert [(text.get_text(), text.xy[1]) for text in axes.texts] == [
        (name, pytest.approx(bar.get_y() + bar.get_height() / 2))
        for name, bar in (("f", low), ("g", high))
    ]
    assert [text.get_verticalalignment() for text in axes.texts] == ["center"] * 2


def test_a_series_without_numbers_and_the_callers_choices():
    picture = histogram({"none": {}, "a": {0: 1}}, title="t", width=5, height=2)
    assert repr(picture).startswith("t. Histogram of exponents. a: exponents 0 to 0")
    assert picture.axes[0].get_title() == "t"
    assert tuple(picture.get_size_inches()) == (5, 2)
    two = panels(2)
    assert histogram({"": {0: 1}}, on=two.axes[1], alt="Mine.") is two
    assert two.axes[1].words == "Mine."
    assert two.axes[1].get_legend() is None
    assert not two.axes[0].patches


def test_limits():
    assert histogram({"": {-3: 1, 4: 1}}).axes[0].get_xlim() == (-5, 7)
    axes = histogram({"a": {0: 1}, "b": {0: 1, 9: 1}}).axes[0]
    first = histogram({"b": {0: 1}, "a": {0: 1}}).axes[0].containers[0][0]
    assert to_hex(first.get_facecolor()) == SERIES_COLORS[0]
    assert axes.get_xlim() == (-2, 12)  # around the numbers of all series
    assert axes.get_ylim()[1] > 100
    assert axes.get_xlabel() == "exponent: the number is at least 2 to this power"
    assert axes.get_ylabel() == "share of the numbers, %"
    assert histogram({"": {-3: 1}}, xlim=(-9, 18)).axes[0].get_xlim() == (-9, 18)


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="no numbers"):
        histogram({"gradients": {}})


def test_bars_begin_at_zero_and_formats_are_thin():
    axes = histogram({"a": {0: 1}}, ranges={"f": (0, 1, 2)}).axes[0]
    light = axes.containers[1][0]
    assert axes.get_ylim()[0] == 0
    assert light.get_y() + light.get_height() < axes.get_ylim()[1]
