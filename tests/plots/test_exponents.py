"""A histogram over exponents, with the ranges of formats."""

import pytest

from helpers.plots.exponents import histogram


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


def test_limits():
    assert histogram({"": {-3: 1, 4: 1}}).axes[0].get_xlim() == (-5, 7)
    assert histogram({"": {-3: 1}}, xlim=(-9, 18)).axes[0].get_xlim() == (-9, 18)


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="no numbers"):
        histogram({"gradients": {}})
