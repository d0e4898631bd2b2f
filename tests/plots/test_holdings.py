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
