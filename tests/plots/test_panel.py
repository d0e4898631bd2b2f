"""Axes to draw on: new ones, or those of another picture."""

import pytest

from helpers.plots.panel import canvas, panels


def test_plots_side_by_side():
    picture = panels(3, 2, width=6.0, height=4.0, sharey=True)
    assert len(picture.axes) == 6
    places = [axes.get_subplotspec() for axes in picture.axes]
    assert [(p.rowspan.start, p.colspan.start) for p in places] == [
        (row, column) for row in range(2) for column in range(3)
    ]
    assert tuple(panels(1, 3).get_size_inches()) == pytest.approx((3.9, 8.4))
    assert tuple(panels(width=2).get_size_inches()) == (2, 2.8)
    assert tuple(panels(height=2).get_size_inches()) == (7.8, 2)
    assert tuple(picture.get_size_inches()) == (6.0, 4.0)
    assert tuple(panels(2).get_size_inches()) == (7.8, 2.8)
    picture.axes[0].set_ylim(0, 7)
    assert picture.axes[1].get_ylim() == (0, 7)
    apart = panels(2, 2)  # by default each plot has its own limits
    apart.axes[0].set(xlim=(0, 7), ylim=(0, 7))
    assert {(axes.get_xlim(), axes.get_ylim()) for axes in apart.axes[1:]} == {((0, 1), (0, 1))}


def test_a_canvas_is_new_or_that_of_another_picture():
    axes, picture = canvas(width=3.0, height=2.0)
    assert picture.axes == [axes]
    assert tuple(picture.get_size_inches()) == (3.0, 2.0)
    assert tuple(canvas()[1].get_size_inches()) == (6.2, 2.8)
    other = panels(2)
    assert canvas(other.axes[1]) == (other.axes[1], other)
