"""Strategies make parts step by step: stages, cuts, flat ranges, pending sums."""

import pytest
from hypothesis import given

from helpers.comm.mesh import Layout
from helpers.state.part import Cut
from helpers.state.placing import Seat, cut, flat, index, only, pending, whole
from tests.state.cases import layouts

GRID = Layout(dp=2, pp=2, tp=2)  # rank = 4 dp + 2 pp + tp


def on_every_rank(layout, place):
    """Call `place` on every seat, with a tensor of shape (8, 6)."""
    seats = [Seat(layout, rank) for rank in range(layout.world_size)]
    return [place(seat, whole(seat, "w", (8, 6))) for seat in seats]


def test_tensor_parallel():
    parts = on_every_rank(GRID, lambda s, p: pending(s, cut(s, p, 0, "tp"), "dp"))
    assert parts[0].cuts == (Cut(dim=0, axes=("tp",), ranges=((0, 4),)),)
    assert parts[7].cuts == (Cut(dim=0, axes=("tp",), ranges=((4, 8),)),)
    assert parts[0].holders == (0, 2, 4, 6)
    assert parts[3].pending == ((3, 7),)


def test_a_negative_dim_and_an_uneven_cut():
    parts = on_every_rank(Layout(tp=4), lambda s, p: cut(s, p, -1, "tp"))
    assert [p.ranges(1) for p in parts] == [((0, 2),), ((2, 4),), ((4, 5),), ((5, 6),)]
    with pytest.raises(IndexError):
        on_every_rank(Layout(tp=4), lambda s, p: cut(s, p, 2, "tp"))


def test_a_tied_embedding_is_on_the_first_and_the_last_stage():
    layout = Layout(dp=2, pp=4)
    parts = on_every_rank(layout, lambda s, p: only(s, p, "pp", [0, 3]))
    assert [p is None for p in parts] == [False, True, True, False] * 2
    assert parts[3].holders == (0, 3, 4, 7)
    seat = Seat(layout, 7)
    tied = pending(seat, pending(seat, parts[7], "pp"), "dp")
    assert tied.pending == ((4, 7), (3, 7))


def test_ranks_with_the_same_flat_range_are_holders():
    where = [(0, 0), (0, 48), (0, 0), (0, 48)]
    parts = on_every_rank(Layout(dp=4), lambda s, p: flat(s, p, "dp", where=where))
    assert [p.holders for p in parts] == [(0, 2), (1, 3)] * 2


def test_fused_query_key_value_is_several_ranges():
    """The rows are q0 q1 k0 k1 v0 v1. Each rank holds its head of q, k and v."""
    where = [[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4), (5, 6)]]
    parts = on_every_rank(Layout(tp=2), lambda s, p: cut(s, p, 1, "tp", where))
    assert parts[1].ranges(1) == ((1, 2), (3, 4), (5, 6))
    assert parts[1].local_shape == (8, 3)


def test_ranks_that_share_a_key_head_are_holders():
    where = [[(0, 4)], [(0, 4)], [(4, 8)], [(4, 8)]]
    place = lambda s, p: pending(s, cut(s, p, 0, "tp", where), "tp")  # noqa: E731
    parts = on_every_rank(Layout(tp=4), place)
    assert [p.holders for p in parts] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert [p.pending for p in parts] == [((0, 1),), ((0, 1),), ((2, 3),), ((2, 3),)]


def test_a_dim_cut_along_two_axes():
    """The second cut counts the indices that the first cut left."""
    layout = Layout(tp=2, dp=2)
    where = [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]
    parts = on_every_rank(layout, lambda s, p: cut(s, cut(s, p, 0, "tp", where), 0, "dp"))
    assert [p.ranges(0) for p in parts] == [((0, 2),), ((4, 6),), ((2, 4),), ((6, 8),)]
    assert parts[0].cuts[0].axes == ("tp", "dp")
    assert all(p.holders == (r,) for r, p in enumerate(parts))


def test_zero():
    parts = on_every_rank(GRID, lambda s, p: flat(s, cut(s, p, 1, "tp"), "dp"))
    assert [p.flat for p in parts] == [(0, 12)] * 4 + [(12, 24)] * 4
    assert parts[5].holders == (5, 7)  # both stages
    parts = on_every_rank(GRID, lambda s, p: flat(s, p, "tp", "dp"))
    assert [p.flat for p in parts][:2] == [(0, 12), (12, 24)]
    assert parts[4].flat == (24, 36)
    chosen = on_every_rank(Layout(dp=2), lambda s, p: flat(s, p, "dp", where=[(0, 0), (0, 48)]))
    assert [p.numel for p in chosen] == [0, 48]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (lambda s, p: cut(s, p, 0, "tp", [[(0, 8)]]), "1 entries, but the axes have 2"),
        (lambda s, p: cut(s, p, 0, "tp", [[(0, 4)], [(5, 8)]]), "repeats index 4"),
        (lambda s, p: cut(s, p, 0, "tp", [[(0, 4)], [(3, 8)]]), "repeats index 3"),
        (lambda s, p: cut(s, p, 0, "tp", [[(0, 4)], [(4, 7)]]), "covers 7 indices of 8"),
        (lambda s, p: cut(s, p, 0, "tp", [[(0, 4)], [(0, 4)]]), "covers 4 indices of 8"),
        (lambda s, p: cut(s, p, 0, "tp", [[(0, 4)], [(4, 9)]]), "covers 9 indices of 8"),
        (lambda s, p: cut(s, flat(s, p, "dp"), 0, "tp"), "cut first"),
        (lambda s, p: flat(s, flat(s, p, "dp"), "tp"), "a flat range already"),
        (lambda s, p: cut(s, pending(s, p, "dp", "tp"), 0, "tp"), "Cut first"),
        (lambda s, p: pending(s, pending(s, p, "dp"), "dp", "tp"), "count ranks twice"),
        (lambda s, p: only(s, p, "pp", [2]), "axis pp has no index 2"),
        (lambda s, p: cut(s, p, 0, "cp"), "no axis 'cp'"),
        (lambda s, p: flat(s, p, "dp", where=[(0, 4), (5, 48)]), "repeats index 4"),
    ],
)
def test_invalid_placings(place, message):
    with pytest.raises(ValueError, match=message):
        on_every_rank(GRID, place)


def test_an_invalid_seat():
    with pytest.raises(ValueError, match="no rank 8"):
        Seat(GRID, 8)


@given(layouts())
def test_index_is_the_place_in_the_group(layout):
    for axes in ((), layout.axes[:1], layout.axes[-1:], layout.axes[::-1]):
        for rank in range(layout.world_size):
            assert index(layout, rank, axes) == layout.group_of(rank, *axes).index(rank)
