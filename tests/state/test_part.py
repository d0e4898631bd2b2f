"""A part's properties, and the parts that raise an error."""

import dataclasses
import pickle

import pytest

from helpers.state.part import Cut, Part, decays, joined


def part(**changes) -> Part:
    return Part(**{"name": "w", "shape": (8, 6), "holders": (0,), **changes})


ROWS = Cut(dim=0, axes=("tp",), ranges=((0, 2), (4, 7)))


def test_shapes():
    assert part().local_shape == (8, 6)
    cut = part(cuts=[ROWS])
    assert (cut.block, cut.local_shape, cut.numel) == ((5, 6), (5, 6), 30)
    both = part(cuts=[Cut(dim=1, axes=("dp",), ranges=[(5, 6)]), ROWS])
    assert both.local_shape == (5, 1)
    assert [c.dim for c in both.cuts] == [0, 1]
    flat = part(cuts=[ROWS], flat=(7, 30))
    assert (flat.block, flat.local_shape, flat.numel) == ((5, 6), (23,), 23)
    assert part(shape=(), flat=(0, 1)).local_shape == (1,)
    assert part(shape=()).numel == 1
    assert part(shape=(), flat=(1, 1)).numel == 0
    assert part(cuts=[Cut(dim=1, axes=("tp",), ranges=())]).local_shape == (8, 0)


def test_ranges():
    cut = part(cuts=[ROWS])
    assert cut.ranges(0) == ((0, 2), (4, 7))
    assert cut.ranges(1) == ((0, 6),)
    assert part(shape=(0,)).ranges(0) == ()
    assert joined([(0, 2), (2, 2), (2, 5), (1, 1), (7, 8)]) == ((0, 5), (7, 8))
    ranges = (2, 4), (0, 2)  # they keep their order, and do not overlap
    assert joined(ranges) == Cut(dim=0, axes=("tp",), ranges=ranges).ranges == ranges


def test_equal_descriptions_are_equal():
    one = part(cuts=[Cut(dim=0, axes=["tp"], ranges=[[0, 1], [1, 2], [4, 7]])], holders=[0])
    assert one == part(cuts=(ROWS,))
    assert hash(one) == hash(part(cuts=(ROWS,)))
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "v"


def test_ranks_are_sorted_and_each_is_named_once():
    given = part(holders=[2, 0, 1, 2], pending=[(1, 0, 1), [2, 0]])
    assert (given.holders, given.pending) == ((0, 1, 2), ((0, 1), (0, 2)))
    assert part(flat=(48, 48)).numel == 0  # at the end of the block


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(3, 2)], "runs backwards"),
        ([(-1, 2)], "runs backwards"),
        ([(0, 3), (2, 5)], "overlap"),
        ([(4, 8), (0, 5)], "overlap"),
    ],
)
def test_invalid_ranges(ranges, message):
    with pytest.raises(ValueError, match=message):
        Cut(dim=0, axes=("tp",), ranges=ranges)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cuts": [ROWS, ROWS]}, "a dim is cut twice"),
        ({"cuts": [Cut(dim=2, axes=("tp",), ranges=[])]}, "no dim 2"),
        ({"cuts": [Cut(dim=-1, axes=("tp",), ranges=[])]}, "no dim -1"),
        ({"cuts": [Cut(dim=1, axes=("tp",), ranges=[(0, 7)])]}, "exceeds dim 1"),
        ({"cuts": [Cut(dim=1, axes=("tp",), ranges=[(0, 2), (5, 7)])]}, "exceeds dim 1"),
        ({"flat": (0, 49)}, "exceeds the block"),
        ({"cuts": [ROWS], "flat": (0, 31)}, "exceeds the block"),
        ({"flat": (3, 2)}, "exceeds the block"),
        ({"holders": ()}, "no holders"),
        ({"holders": (0, 1), "pending": [(0, 2)]}, "cannot be pending"),
        ({"holders": (0, 1), "pending": [(0,)]}, "cannot be pending"),
        ({"holders": (0, 1, 2), "pending": [(0, 1, 2), (0, 1)]}, "count ranks twice"),
        ({"holders": (0, 1, 2, 3), "pending": [(0, 1), (2, 3)]}, "count ranks twice"),
        ({"holders": range(4), "pending": [(0, 1), (0, 2), (1, 0)]}, "count ranks twice"),
        ({"flat": (-1, 2)}, "exceeds the block"),
    ],
)
def test_invalid_parts(changes, message):
    with pytest.raises(ValueError, match=message):
        part(**changes)


def test_a_pending_sum_is_completed_once():
    tied = part(holders=range(4), pending=[(0, 1), (0, 2)])
    assert tied.completed((2, 0)).pending == ((0, 1),)
    assert tied.completed().pending == ()
    assert tied.completed((0, 1), [2, 0]).pending == ()
    assert tied.completed((0, 1)).completed((0, 2)) == tied.completed()
    with pytest.raises(ValueError, match="no sum over ranks"):
        tied.completed((0, 1)).completed((0, 1))


def test_it_describes_itself():
    assert str(part()) == "w (8, 6) on rank 0"
    full = part(cuts=[ROWS], flat=(7, 30), holders=range(10), pending=[(0, 1), (0, 2)])
    assert str(full) == (
        "w (8, 6)[0:2+4:7, :] flat 7:30 on ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more "
        "pending ranks 0, 1 and ranks 0, 2"
    )
    assert "[:, none]" in str(part(cuts=[Cut(dim=1, axes=("tp",), ranges=())]))


def test_a_states_decays_are_kept():
    """Gu and Dao's code trains A_log without weight decay; it is a matrix in Mamba."""
    for name, shape, expected in (
        ("blocks.0.mamba.A_log", (8, 4), False),
        ("blocks.0.mamba2.A_log", (8,), False),
        ("blocks.0.mamba.convolution.weight", (8, 4), True),
        ("blocks.0.mamba.delta.bias", (8,), False),
    ):
        assert decays(Part(name=name, shape=shape, holders=(0,))) is expected, name
