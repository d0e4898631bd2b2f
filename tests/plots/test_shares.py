"""A tensor's outline for each rank, with the rank's boxes in their places."""

import pytest

from helpers.plots.shares import shares
from helpers.plots.style import FAINT, RANK_COLORS


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
    assert {color for _, color in rectangles(figure)[::2]} == {FAINT}  # not held
    assert min(box[1] for box, _ in rectangles(figure)) > 0.2  # inches, below a title, too
    wide, tall = first[2] - first[0], first[3] - first[1]
    middle = first[1] + tall / 2
    assert low == pytest.approx((first[0], middle, first[0] + wide / 3, first[3]))
    assert high == pytest.approx((second[0] + wide / 3, second[1], second[2], second[1] + tall / 2))
    axes = figure.axes[0]
    texts = [(text.get_text(), *text.get_position()) for text in axes.texts]
    assert [text for text, *_ in texts] == ["w", "rank 0", "rank 1"]
    assert [x for _, x, _ in texts] == pytest.approx(
        [figure.get_figwidth() / 2, first[0], second[0]]
    )
    assert first[2] < second[0]
    title, name = texts[0][2], texts[1][2]
    assert first[3] < name < title < axes.get_ylim()[1] == figure.get_figheight()
    assert 0 < second[2] < axes.get_xlim()[1] == figure.get_figwidth()
    assert (wide, tall) == pytest.approx((0.75, 1))  # inches
    assert figure.alt.startswith("w. ")
    assert "rank 1: ((2, 4), (1, 3))" in figure.alt


def test_a_vector_is_a_row_and_ranks_go_on_in_the_next_line():
    figure = shares((6,), [[((0, 3),)], [((3, 6),)], []], columns=2, names=["a", "b", "c"])
    (first, _), (box, _), (second, _), (other, _), (third, _) = rectangles(figure)
    assert box == pytest.approx((first[0], first[1], (first[0] + first[2]) / 2, first[3]))
    assert other[2] == pytest.approx(second[2])
    assert third[0] == pytest.approx(first[0])
    assert third[3] < first[1]
    assert third[1] > 0
    assert first[2] - first[0] == pytest.approx(1)  # inches
    assert 0.1 < first[3] - first[1] < 0.2  # wide enough to be seen
    texts = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    assert {name: x for name, (x, _) in texts.items()} == pytest.approx(
        {"a": first[0], "b": second[0], "c": first[0]}
    )
    assert texts["c"][1] < texts["a"][1] < figure.get_figheight()
    assert "c: nothing" in figure.alt


def test_colours_start_again_after_the_last():
    ranks = len(RANK_COLORS) + 2
    figure = shares((ranks,), [[((rank, rank + 1),)] for rank in range(ranks)])
    colors = [color for _, color in rectangles(figure)[1::2]]
    assert colors == [*RANK_COLORS, *RANK_COLORS[:2]]


def test_a_rank_with_two_boxes_and_an_empty_tensor():
    figure = shares((4, 2), [[((0, 1), (0, 2)), ((3, 4), (0, 2))], [((2, 2), (0, 0))]])
    (outline, _), (top, one), (low, two), _, (none, _) = rectangles(figure)
    assert one == two == RANK_COLORS[0]
    assert (top[3], low[1]) == pytest.approx((outline[3], outline[1]))
    assert top[3] - top[1] == pytest.approx((outline[3] - outline[1]) / 4)
    assert none[2] - none[0] == none[3] - none[1] == 0
    for shape, box in (((0,), ((0, 0),)), ((0, 3), ((0, 0), (0, 3)))):
        _, (none, _) = rectangles(shares(shape, [[box]]))
        assert 0 in (none[2] - none[0], none[3] - none[1])
    assert repr(shares((2,), [[((0, 2),)]])) == (
        "The part of the tensor that each rank holds. rank 0: ((0, 2),)."
    )
    assert "rank 0: ((0, 1), (0, 2)) and ((3, 4), (0, 2)); rank 1" in figure.alt
    many = shares((4, 4), [[]] * 9)  # eight outlines side by side
    lefts = [round(box[0], 6) for box, _ in rectangles(many)]
    assert len(set(lefts)) == 8
    assert lefts[8] == lefts[0]


def test_the_drawing_fills_the_picture():
    axes = shares((2,), [[((0, 1),)]]).axes[0]
    assert axes.get_position().bounds == (0, 0, 1, 1)
    assert not axes.axison
