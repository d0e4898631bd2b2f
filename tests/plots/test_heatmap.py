"""Each number is a cell; numbers are written so that they can be read."""

import pytest
import torch

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
    assert len(picture.axes) == 2  # with the colour bar
    assert repr(picture) == "A heat map of 2 rows and 4 columns, colours from 0 to 7 (row)."


def test_limits_are_the_first_and_the_last_colour():
    for limits, expected in (((0, 10), (0, 10)), ((None, 5), (1, 5)), ((None, None), (1, 2))):
        image = plots.heat([[1.0, 2.0]], limits=limits).axes[0].images[0]
        assert image.get_clim() == expected


def test_cuts_lie_between_rows():
    axes = plots.heat(torch.zeros(6, 2), cut_rows=2).axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.5, 1.5], [3.5, 3.5]]


@pytest.mark.parametrize("rows", [[], [1, 2], [[]]])
def test_what_cannot_be_drawn(rows):
    with pytest.raises(ValueError, match="matrix"):
        plots.heat(rows)


def test_rows_of_different_lengths():
    with pytest.raises(ValueError, match="inhomogeneous"):
        plots.heat([[1, 2], [3]])
