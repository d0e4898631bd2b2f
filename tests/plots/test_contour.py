"""Each level that occurs has a line and a label."""

import numpy as np
import pytest

from helpers import plots

X, Y = np.geomspace(1, 100, 30), np.geomspace(1, 10, 20)
VALUES = np.log10(X[None, :] * Y[:, None])  # 0 to 3


def test_lines_and_labels():
    picture = plots.contours(X, Y, VALUES, levels=[-1, 1, 2, 7], log="xy", xlabel="C", ylabel="N")
    axes = picture.axes[0]
    lines = axes.collections[0]
    assert lines.levels.tolist() == [1, 2]
    assert {text.get_text() for text in axes.texts} == {"1", "2"}
    assert min(text.get_fontsize() for text in axes.texts) >= 9
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert repr(picture) == "Lines of equal value, 1, 2, over C and N."
    exact = plots.contours(X, Y, VALUES, levels=[1.25], log="xy").axes[0]
    assert {text.get_text() for text in exact.texts} == {"1.25"}


def test_each_axis_has_its_own_scale():
    for log, scales in (("x", ("log", "linear")), ("y", ("linear", "log")), ("yx", ("log", "log"))):
        axes = plots.contours(X, Y, VALUES, levels=[1], log=log).axes[0]
        assert (axes.get_xscale(), axes.get_yscale()) == scales


def test_a_level_at_the_end_is_a_point_and_no_line():
    ends = [VALUES.min(), VALUES.max()]
    picture = plots.contours(X, Y, VALUES, levels=[*ends, 1])
    assert picture.axes[0].collections[0].levels.tolist() == [1]
    with pytest.raises(ValueError, match="no level lies between"):
        plots.contours(X, Y, VALUES, levels=ends)


def test_no_level():
    with pytest.raises(ValueError, match="no level lies between 0 and 3"):
        plots.contours(X, Y, VALUES, levels=[5])


def test_curves_on_top_leave_the_words():
    picture = plots.contours(X, Y, VALUES, levels=[1], log="xy")
    plots.curves({"best": (X, np.sqrt(X))}, log="xy", on=picture.axes[0])
    assert "Lines of equal value" in repr(picture)


def test_the_lines_lie_where_the_values_are():
    picture = plots.contours(
        X, Y, VALUES, levels=[0.5, 1, 2], log="xy", form="%.1f", title="t", width=5, height=4
    )
    (axes,) = picture.axes
    for level, path in zip([0.5, 1, 2], axes.collections[0].get_paths(), strict=True):
        x, y = path.vertices[len(path.vertices) // 2]
        assert abs(np.log10(x * y) - level) < 0.02
    assert {text.get_text() for text in axes.texts} == {"0.5", "1.0", "2.0"}
    assert tuple(picture.get_size_inches()) == (5, 4)
    assert axes.get_title() == "t"
    assert not axes.xaxis.get_gridlines()[0].get_visible()
    assert repr(picture).startswith("t. Lines of equal value, 0.5, 1.0, 2.0, over")
    colors = [tuple(color) for color in axes.collections[0].get_edgecolor()]
    assert len(set(colors)) == 3
    assert sum(colors[0][:3]) < sum(colors[2][:3])  # dark: the lowest level


def test_on_the_axes_of_another_picture():
    two = plots.panels(2)
    right = two.axes[1]
    assert plots.contours(X, Y, VALUES, levels=[1], ylabel="N", on=right, alt="Mine.") is two
    assert (right.get_ylabel(), right.words, len(right.collections)) == ("N", "Mine.", 1)
    assert not two.axes[0].collections
