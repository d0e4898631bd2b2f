"""The drawing shows every value once, in its owner's colour, at its rank's height."""

import matplotlib.colors
import torch

from helpers.plots.holdings import holdings
from helpers.plots.style import RANK_COLORS


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def boxes(figure):
    return figure.axes[0].patches


def test_every_value_is_drawn():
    figure = holdings({"before": [[1, 2], [3, 4.5]], "after": [torch.tensor([7.0]), None]})
    assert {"before", "after", "rank 0", "rank 1", "1", "2", "3", "4.5", "7"} <= set(texts(figure))
    assert len(boxes(figure)) == 5
    assert repr(figure) == (
        "Before. rank 0: 1, 2; rank 1: 3, 4.5. After. rank 0: 7; rank 1: nothing."
    )
    assert len([text for text in figure.axes[0].texts if hasattr(text, "arrow_patch")]) == 1


def test_each_value_stands_in_its_box_at_its_rank_and_in_its_column():
    figure = holdings({"a": [[1, 2], [3]], "b": [[], [4]], "c": [["x"], [5]]})
    places = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    for value, box in zip(("1", "2", "3", "4", "x", "5"), boxes(figure), strict=True):
        x, y = places[value]
        rank = 0 if value in ("1", "2", "x") else 1
        assert y == rank == places[f"rank {rank}"][1]
        assert box.get_x() < x < box.get_x() + box.get_width()
        assert box.get_y() < y < box.get_y() + box.get_height()
    assert places["1"][0] == places["3"][0] == places["2"][0] - 1
    assert places["2"][0] < places["4"][0] < places["5"][0]
    assert places["a"][0] == (places["1"][0] + places["2"][0]) / 2
    assert (places["b"][0], places["c"][0]) == (places["4"][0], places["5"][0])
    axes = figure.axes[0]
    bottom, top = axes.get_ylim()
    assert top < places["a"][1] < 0  # the titles are above the first rank, on the picture
    assert bottom > 1.38
    for box in boxes(figure):
        assert axes.get_xlim()[0] < box.get_x() < box.get_x() + box.get_width() < axes.get_xlim()[1]


def test_a_long_title_keeps_the_columns_apart():
    states = {"a title of more letters": [[1]], "another long title": [[2]]}
    figure = holdings(states)
    figure.draw_without_rendering()
    first, second = (t.get_window_extent() for t in figure.axes[0].texts if t.get_text() in states)
    assert first.x1 < second.x0
    assert second.x1 < figure.bbox.x1


def test_colours_tell_the_owner():
    figure = holdings({"a": [[1], [2]], "b": [[2], [1]]}, owners={"b": [[1], [0]]})
    colors = [matplotlib.colors.to_hex(box.get_facecolor()) for box in boxes(figure)]
    assert colors == [RANK_COLORS[rank] for rank in (0, 1, 1, 0)]


def test_colours_start_again_after_the_last():
    ranks = len(RANK_COLORS) + 2
    figure = holdings({"own": [[rank] for rank in range(ranks)]})
    colors = [matplotlib.colors.to_hex(box.get_facecolor()) for box in boxes(figure)]
    assert colors == [*RANK_COLORS, *RANK_COLORS[:2]]


def test_each_value_has_its_own_owner():
    figure = holdings({"gathered": [[1, 2], [1, 2]]}, owners={"gathered": [[0, 1], [0, 1]]})
    colors = [matplotlib.colors.to_hex(box.get_facecolor()) for box in boxes(figure)]
    assert colors == [RANK_COLORS[rank] for rank in (0, 1, 0, 1)]


def test_values_of_many_owners_are_grey():
    figure = holdings({"before": [[1], [2]], "sum": [[3], [3]]})
    assert {matplotlib.colors.to_hex(b.get_facecolor()) for b in boxes(figure)[2:]} == {"#dddddd"}


def test_an_arrow_leads_from_state_to_state_and_the_picture_ends_with_the_last():
    figure = holdings({"a": [[1], [2], [3]], "b": [[4], [5], [6]]})
    axes = figure.axes[0]
    (arrow,) = [text for text in axes.texts if hasattr(text, "arrow_patch")]
    assert arrow.xyann[1] == arrow.xy[1] == 1  # between the ranks
    assert arrow.xyann[0] < arrow.xy[0]
    assert arrow.arrowprops["arrowstyle"] == "->"  # its head is at xy
    left, right = (boxes(figure)[n].get_x() for n in (0, 3))
    assert left + 0.86 < arrow.xyann[0] < arrow.xy[0] < right
    three = holdings({"a": [[1]], "b": [[2]], "c": [[3]]}).axes[0]
    assert len([text for text in three.texts if hasattr(text, "arrow_patch")]) == 2
    last = max(box.get_x() + box.get_width() for box in boxes(figure))
    assert last < axes.get_xlim()[1] < last + 0.3
    assert axes.get_position().bounds == (0, 0, 1, 1)


def test_no_box_covers_another_and_later_states_may_have_more():
    """More ranks than the first state, and a rank with more values than rank 0."""
    figure = holdings({"a": [[1]], "b": [[2], [1234, 0.125, 1 / 3, 6, 7]], "c": [[8], [9], [4]]})
    assert {"rank 0", "rank 1", "rank 2", "1234", "0.125", "0.333333"} <= set(texts(figure))
    assert "rank 3" not in texts(figure)
    bounds = [box.get_bbox() for box in boxes(figure)]
    for number, one in enumerate(bounds):
        assert not any(one.overlaps(other) for other in bounds[:number])
        for text in figure.axes[0].texts:
            inside = one.contains(*text.get_position())
            assert not inside or text.get_position()[1] == (one.y0 + one.y1) / 2


def test_a_name_keeps_its_capitals():
    assert repr(holdings({"a part by FSDP2": [[1]]})) == "A part by FSDP2. rank 0: 1."
