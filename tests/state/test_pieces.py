"""Index arithmetic agrees with an enumeration of all indices."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.state.part import Cut, Part
from helpers.state.pieces import common, flat_boxes, inside, pieces, slices, volume


@given(st.lists(st.integers(0, 5), max_size=4).map(tuple), st.data())
def test_a_flat_range_in_boxes(shape, data):
    count = math.prod(shape)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    numbered = torch.arange(count).view(shape)
    boxes = flat_boxes(shape, start, stop)
    found = [numbered[slices(box)].flatten() for box in boxes]
    row = torch.cat(found) if found else torch.arange(0)
    assert row.tolist() == list(range(start, stop))  # in order, each number once
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    assert all(volume(box) for box in boxes)


def test_a_piece_is_a_view():
    cut = Cut(dim=1, axes=("tp",), ranges=((3, 4), (0, 2)))
    part = Part(name="w", shape=(3, 4), cuts=[cut], flat=(1, 8), holders=(0,))
    local = torch.zeros(7)
    for piece in pieces(part):
        piece.of(local).fill_(1)
    assert local.tolist() == [1] * 7


boxes = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=2, max_size=2).map(
    lambda box: tuple((start, start + size) for start, size in box)
)


@given(boxes, boxes)
def test_common(one, other):
    def members(box):
        return {(i, j) for i in range(*box[0]) for j in range(*box[1])}

    both = common(one, other)
    assert (members(both) if both else set()) == members(one) & members(other)
    if both:
        assert members(inside(both, one)) == {
            (i - one[0][0], j - one[1][0]) for i, j in members(both)
        }


def test_common_of_no_dims():
    assert common((), ()) == ()  # the box of a tensor without dims: its one number


def test_boxes_of_different_tensors_are_not_compared():
    with pytest.raises(ValueError, match="zip"):
        common(((0, 1),), ((0, 1), (0, 1)))
