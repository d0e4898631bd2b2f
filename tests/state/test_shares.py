"""Each rank's boxes of one tensor, as text, as a table and as a picture."""

import pytest

from helpers.comm.mesh import Layout
from helpers.state.placing import Seat, cut, flat, only, whole
from helpers.state.shares import shares

LAYOUT = Layout(pp=2, tp=2)


def parts():
    """On stage 0 the rows of a matrix are cut over tp; a flat shard of a vector is anywhere."""
    ranks = []
    for rank in range(4):
        seat = Seat(LAYOUT, rank)
        own = {"bias": flat(seat, whole(seat, "bias", (6,)), "tp")}
        matrix = cut(seat, whole(seat, "up.weight", (8, 3)), 0, "tp")
        if (there := only(seat, matrix, "pp", [0])) is not None:
            own["0.up.weight"] = there
        ranks.append(own)
    return ranks


def test_each_rank_and_what_it_holds():
    found = shares(parts(), "up.weight")
    assert found.rows() == [(0, "0:4, :"), (1, "4:8, :"), (2, "nothing"), (3, "nothing")]
    assert repr(found).splitlines()[:2] == ["up.weight (8, 3)", "rank 0  0:4, :"]
    assert "<td>nothing</td>" in found._repr_html_()
    assert shares(parts(), "bias").rows()[3] == (3, "3:6")
    number = whole(Seat(LAYOUT, 0), "scale", ())
    assert shares([{"scale": number}, {}], "scale").rows() == [(0, "all"), (1, "nothing")]


def test_several_boxes_of_a_rank():
    """A flat range of rows of four: the end of one row, and the beginning of the next."""
    seats = [Seat(Layout(dp=2), rank) for rank in range(2)]
    ranks = [{"w": flat(s, whole(s, "w", (3, 4)), "dp", where=[(0, 3), (3, 12)])} for s in seats]
    found = shares(ranks, "w")
    assert found.rows() == [(0, "0:1, 0:3"), (1, "0:1, 3:4 and 1:3, :")]


def test_the_picture_fills_what_a_rank_holds():
    figure = shares(parts(), "up.weight").plot()
    sizes = [(p.get_width(), p.get_height()) for p in figure.axes[0].patches]
    assert len(sizes) == 4 + 2  # four outlines, two boxes
    outline, box = sizes[0], sizes[1]
    assert box == pytest.approx((outline[0], outline[1] / 2))
    assert "rank 2: nothing" in figure.alt
    assert len(shares(parts(), "bias").plot().axes[0].patches) == 4 + 4


def test_ranks_are_in_line_whatever_the_shape():
    """Pictures under each other compare: a tall matrix needs as much room as a wide one."""
    seat = Seat(Layout(tp=1), 0)
    pictures = [
        shares([{"w": whole(seat, "w", s)}], "w").plot() for s in ((8, 3), (3, 8), (6,), ())
    ]
    assert len({picture.get_size_inches()[0] for picture in pictures}) == 1


def test_a_name_that_nobody_holds():
    with pytest.raises(ValueError, match=r"no rank holds 'down.weight'; there are bias, up.weight"):
        shares(parts(), "down.weight")
