"""A tensor's outline for each rank, with the rank's boxes in their places."""

import pytest

from helpers.plots.shares import shares
from helpers.plots.style import RANK_COLORS


def rectangles(figure):
    """Each patch as (left, bottom, right, top), and its colour."""
    from matplotlib.colors import to_hex

    return [
        ((p.get_x(), p.get_y(), p.get_x() + p.get_width(), p.get_y() + p.get_height()),
         to_hex(p.get_facecolor()))
        for p in figure.axes[0].patches
    ]  # fmt: skip


def test_a_box_has_its_place_within_the_outline():
    """Rows 2:4 of 4 are below rows 0:2, and columns 1:3 of 3 are right of column 0."""
    figure = shares((4, 3), [[((0, 2), (0, 1))], [((2, 4), (1, 3))]], title="w")
    (first, _), (low, one), (second, _), (high, other) = rectangles(figure)
    assert (one, other) == RANK_COLORS[:2]
    wide, tall = first[2] - first[0], first[3] - first[1]
    middle = first[1] + tall / 2
    assert low == pytest.approx((first[0], middle, first[0] + wide / 3, first[3]))
    assert high == pytest.approx((second[0] + wide / 3, second[1], second[2], second[1] + tall / 2))
    assert figure.alt.startswith("w. ")
    assert "rank 1: ((2, 4), (1, 3))" in figure.alt


def test_a_vector_is_a_row_and_ranks_go_on_in_the_next_line():
    figure = shares((6,), [[((0, 3),)], [((3, 6),)], []], columns=2, names=["a", "b", "c"])
    (first, _), (box, _), (second, _), (other, _), (third, _) = rectangles(figure)
    assert box == pytest.approx((first[0], first[1], (first[0] + first[2]) / 2, first[3]))
    assert other[2] == pytest.approx(second[2])
    assert third[0] == pytest.approx(first[0])
    assert third[3] < first[1]
    assert "c: nothing" in figure.alt


def test_colours_start_again_after_the_last():
    ranks = len(RANK_COLORS) + 2
    figure = shares((ranks,), [[((rank, rank + 1),)] for rank in range(ranks)])
    colors = [color for _, color in rectangles(figure)[1::2]]
    assert colors == [*RANK_COLORS, *RANK_COLORS[:2]]
