"""The parts of every rank can be exchanged and looked up."""

from helpers.comm.mesh import Layout, make_mesh
from helpers.state.all_parts import AllParts
from helpers.state.part import Part
from helpers.state.pieces import pieces
from helpers.state.placing import Seat, cut, only, pending, whole


def place(seat) -> dict:
    """A tied embedding on both stages, a matrix on the first, a norm on the second."""
    tied = pending(seat, only(seat, whole(seat, "tied", (6, 2)), "pp", [0, 1]), "pp")
    matrix = only(seat, whole(seat, "matrix", (5, 3)), "pp", [0])
    norm = only(seat, whole(seat, "norm", (3,)), "pp", [1])
    parts = {"tied": tied}
    if matrix:
        parts["matrix"] = cut(seat, matrix, 1, "tp")
    if norm:
        parts["norm"] = pending(seat, norm, "tp")
    return parts


LAYOUT = Layout(pp=2, tp=2)


def test_exchanged(cluster):
    def everyone(worker):
        return [dict(own) for own in AllParts.exchanged(place(make_mesh(LAYOUT))).ranks]

    expected = [place(Seat(LAYOUT, rank)) for rank in range(4)]
    assert list(cluster.run(everyone)) == [expected] * 4


def test_exchanged_within_a_group(cluster):
    """Each pair of ranks has a model of its own; ranks count within the group."""

    def pair(worker):
        own = {"w": Part(name=f"w{worker.rank // 2}", shape=(2,), holders=(0, 1))}
        return dict(AllParts.exchanged(own, make_mesh(LAYOUT).group("tp")).shapes)

    assert list(cluster.run(pair)) == [{"w0": (2,)}] * 2 + [{"w1": (2,)}] * 2


def test_looking_up():
    parts = AllParts(place(Seat(LAYOUT, rank)) for rank in range(4))
    assert parts.shapes == {"tied": (6, 2), "matrix": (5, 3), "norm": (3,)}
    assert [dict(region.keys) for region in parts.regions["matrix"]] == [
        {0: "matrix"},
        {1: "matrix"},
    ]
    assert parts.keys[3] == {"tied": ["tied"], "norm": ["norm"]}
    for rank in (0, 1, 0):
        assert parts.pieces(rank, "matrix") == pieces(parts.ranks[rank]["matrix"])
    assert all(not part.pending for own in parts.completed.ranks for part in own.values())
    norm = parts.named(name for name in ["norm"])
    assert norm.shapes == {"norm": (3,)}
    assert [list(own) for own in norm.ranks] == [[], [], ["norm"], ["norm"]]
    assert all(own.keys() == parts.shapes.keys() for own in parts.whole.ranks)
    assert repr(parts).splitlines() == [
        "3 tensors on 4 ranks",
        "  tied (6, 2) on ranks 0, 1, 2, 3 pending ranks 0, 2",
        "  matrix (5, 3)[:, 0:2] on rank 0",
        "  matrix (5, 3)[:, 2:3] on rank 1",
        "  norm (3,) on ranks 2, 3 pending ranks 2, 3",
    ]


def test_the_order_is_the_same_on_all_ranks():
    """The order of regions does not depend on the order of other ranks' dicts."""
    ranks = [place(Seat(LAYOUT, rank)) for rank in range(4)]
    other = [dict(reversed(own.items())) if rank else own for rank, own in enumerate(ranks)]
    one, two = AllParts(ranks), AllParts(other)
    assert one.regions["matrix"] == two.regions["matrix"]


def test_a_tensor_without_numbers():
    seat = Seat(Layout(dp=1), 0)
    parts = AllParts([{"none": whole(seat, "none", (0, 4))}])
    assert parts.regions == {"none": []}
    assert "none (0, 4) is empty" in repr(parts)


def test_a_rank_with_two_parts_of_one_tensor_and_one_of_another():
    """Each key has pieces of its own, and a plain name may have several keys."""

    def rows(start, stop, name="w"):
        return Part(name=name, shape=(6,), flat=(start, stop), holders=(start // 3,))

    given = {"low": rows(0, 1), "bias": rows(0, 6, "b"), "high": rows(1, 3)}
    parts = AllParts([given, {"rest": rows(3, 6)}])
    given.clear()  # the caller's own dict
    assert parts.keys == [{"w": ["low", "high"], "b": ["bias"]}, {"w": ["rest"]}]
    boxes = {key: [piece.box for piece in parts.pieces(0, key)] for key in ("low", "bias", "high")}
    assert boxes == {"low": [((0, 1),)], "bias": [((0, 6),)], "high": [((1, 3),)]}
    assert [piece.box for piece in parts.pieces(1, "rest")] == [((3, 6),)]
