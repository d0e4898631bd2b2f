"""Each number is a cell; numbers are written so that they can be read."""

import pytest
import torch
from matplotlib.colors import ListedColormap

from helpers import plots


def test_cells_numbers_and_cuts():
    rows = torch.arange(8.0).reshape(2, 4)
    picture = plots.heat(
        rows, numbers="{:.0f}", columns={1: "rank 0"}, names=["a", "b"], cut_columns=2, scale="row"
    )
    axes = picture.axes[0]
    assert axes.images[0].get_array().tolist() == rows.tolist()
    found = {text.get_position(): (text.get_text(), text.get_color()) for text in axes.texts}
    assert found[0, 0] == ("0", "white")  # on the darkest colour
    assert found[3, 1] == ("7", "black")
    assert [list(line.get_xdata()) for line in axes.lines] == [[1.5, 1.5]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["rank 0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [axes.get_xticks().tolist(), axes.get_yticks().tolist()] == [[1], [0, 1]]
    assert [found[c, r][0] for r in range(2) for c in range(4)] == list("01234567")
    assert len(picture.axes) == 2  # with the colour bar
    assert picture.axes[1].get_ylabel() == "row"
    assert axes.get_ylim() == (1.5, -0.5)  # the first row is the highest
    assert axes.images[0].get_interpolation() in ("auto", "nearest")  # each cell has one colour
    assert axes.get_aspect() == "auto"  # the cells fill the picture
    assert repr(picture) == "A heat map of 2 rows and 4 columns, colours from 0 to 7 (row)."


def test_limits_are_the_first_and_the_last_colour():
    for limits, expected in (
        ((0, 10), (0, 10)),
        ((None, 5), (1, 5)),
        ((-2, 0), (-2, 0)),
        ((None, None), (1, 2)),
    ):
        image = plots.heat([[1.0, 2.0]], limits=limits).axes[0].images[0]
        assert image.get_clim() == expected
    assert plots.heat([[1.0, 2.0]]).axes[0].images[0].get_clim() == (1, 2)


def test_cuts_lie_between_rows():
    axes = plots.heat(torch.zeros(6, 2), cut_rows=2).axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.5, 1.5], [3.5, 3.5]]
    axes = plots.heat(torch.zeros(3, 6), cut_columns=3, cut_rows=2).axes[0]
    assert [list(line.get_xdata()) for line in axes.lines] == [[2.5, 2.5], [0, 1]]
    assert list(axes.lines[1].get_ydata()) == [1.5, 1.5]


def test_a_grey_that_is_light_has_a_black_number():
    values = [[0.0, 0.4, 0.5, 0.6, 1.0]]
    axes = plots.heat(values, numbers="{:.1f}", cmap="gray", limits=(0, 1)).axes[0]
    assert [t.get_color() for t in axes.texts] == ["white"] * 3 + ["black"] * 2
    dark = plots.heat([[5, 10]], numbers="{}", limits=(0, 100)).axes[0]
    assert [text.get_color() for text in dark.texts] == ["white"] * 2  # by colours, not by rows
    # Of pure colours, green is the lightest and blue is the darkest.
    for low, color in (("red", "white"), ("lime", "black"), ("blue", "white")):
        cmap = ListedColormap([low, "black"])
        assert plots.heat([[0, 1]], numbers="{}", cmap=cmap).axes[0].texts[0].get_color() == color


def test_names_of_axes_and_the_callers_choices():
    picture = plots.heat([[1, 2]], xlabel="x", ylabel="y", title="t", width=5, height=2, names=[7])
    (axes,) = picture.axes  # no colour bar
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("x", "y", "t")
    assert tuple(picture.get_size_inches()) == (5, 2)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["7"]
    assert (len(axes.get_xticks()), len(axes.lines), len(axes.texts)) == (0, 0, 0)
    assert repr(picture) == "t. A heat map of 1 rows and 2 columns, colours from 1 to 2."
    two = plots.panels(2)
    assert plots.heat([[1, 2]], on=two.axes[1], scale="s", alt="Mine.") is two
    assert two.axes[1].words == "Mine."
    assert not two.axes[0].images
    two.draw_without_rendering()
    ends = [axes.get_position().x0 for axes in two.axes]
    assert ends == sorted(ends)  # the colour bar is beside its own heat map
    assert "colours from 0.12 to 8.8." in repr(plots.heat([[0.125, 8.75]]))


@pytest.mark.parametrize("rows", [[], [1, 2], [[]]])
def test_what_cannot_be_drawn(rows):
    with pytest.raises(ValueError, match="matrix"):
        plots.heat(rows)


def test_rows_of_different_lengths():
    with pytest.raises(ValueError, match="inhomogeneous"):
        plots.heat([[1, 2], [3]])
