"""The parts of every rank: exchanged, looked up; each kind of wrong part raises its own error."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.comm.mesh import Layout, make_mesh
from helpers.state.all_parts import AllParts, check
from helpers.state.part import Cut, Part
from helpers.state.pieces import pieces, volume
from helpers.state.placing import Seat, cut, only, pending, whole
from tests.state.cases import spread


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


def part(rows=None, shape=(4, 2), **changes) -> Part:
    cuts = [] if rows is None else [Cut(dim=0, axes=("tp",), ranges=[rows])]
    return Part(**{"name": "w", "shape": shape, "cuts": cuts, "holders": (0, 1), **changes})


def of(*parts: Part):
    """Check these parts, one per rank."""
    ranks = [{"w": part} for part in parts]
    return check(ranks, {"w": (4, 2)})


def test_parts_that_make_up_the_model():
    [one] = of(part(), part())["w"]
    assert one.keys == {0: "w", 1: "w"}
    low, high = of(part((2, 4), holders=[0]), part((0, 2), holders=[1]))["w"]
    assert (low.keys, high.keys) == ({1: "w"}, {0: "w"})  # in the tensor's order
    assert of(part((0, 2), flat=(0, 4)), part((0, 2)), part((2, 4), holders=[2]))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((part(), part(shape=(2, 4))), r"shape \(2, 4\) on rank 1, but \(4, 2\) on another"),
        ((part(), part(holders=[0])), "rank 1 has .* not among its holders"),
        ((part(holders=[0]), part(holders=[1])), r"rank 0 has .*, but ranks \(0, 1\) hold it"),
        ((part(),), r"rank 0 has .*, but ranks \(0,\) hold it"),
        ((part((0, 2), holders=[0]), part((1, 4), holders=[1])), "in two parts"),
        ((part((0, 4)), part((0, 3))), "in two parts"),
        ((part((0, 2), holders=[0]), part((3, 4), holders=[1])), "hold 6 of its 8 numbers"),
        ((part((0, 2), flat=(1, 3)), part((0, 2), flat=(1, 3))), "hold 2 of its 8 numbers"),
        ((part(pending=[(0, 1)]), part()), "rank 0 has .*; rank 1 has"),
        ((part(flat=(0, 8), pending=[(0, 1)]), part(pending=[(0, 1)])), "in different orders"),
    ],
)
def test_parts_that_do_not_make_up_the_model(parts, message):
    with pytest.raises(ValueError, match=message):
        of(*parts)


def test_the_same_numbers_under_two_keys():
    with pytest.raises(ValueError, match="rank 0 holds the same numbers twice"):
        check([{"a": part(holders=[0]), "b": part(holders=[0])}], {"w": (4, 2)})


def grid(*pending) -> list[Part]:
    return [part(holders=range(4), pending=sums) for sums in pending]


def test_sums_along_two_axes():
    one, other = [(0, 1), (2, 3)], [(0, 2), (1, 3)]
    both = grid(*[[one[r // 2], other[r % 2]] for r in range(4)])
    assert of(*both)
    swapped = grid([other[1], one[0]])[0]
    with pytest.raises(ValueError, match=r"rank 0 has .*; rank 1 has"):
        of(both[0], swapped, *both[2:])
    with pytest.raises(ValueError, match=r"rank 3 has .*; rank 1 has"):
        of(both[0], *grid([one[0]]), *both[2:])


def test_sums_that_count_a_rank_twice():
    """Two of the three pairings of four ranks complete the sum; the third would double it."""
    pairings = [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    sums = [[g for pairing in pairings for g in pairing if rank in g] for rank in range(4)]
    with pytest.raises(ValueError, match="count a rank twice"):
        of(*grid(*sums))


def test_sums_that_differ_between_ranks():
    """Pairs on a ring of six: every rank sums four ranks, but not the same four."""
    ring = [[(0, 1), (0, 2)], [(0, 1), (1, 3)], [(2, 4), (0, 2)], [(3, 5), (1, 3)]]
    ring += [[(2, 4), (4, 5)], [(3, 5), (4, 5)]]
    with pytest.raises(ValueError, match="include other ranks on rank 1"):
        of(*[part(holders=range(6), pending=sums) for sums in ring])


@settings(deadline=None)
@given(spread(), st.data())
def test_a_missing_or_doubled_part_raises(drawn, data):
    _, _, parts = drawn
    ranks = [dict(own) for own in parts.ranks]
    for regions in parts.regions.values():
        assert all(volume(box) for region in regions for box in region.boxes)
    held = [(rank, key) for rank, own in enumerate(ranks) for key in own if own[key].numel]
    if not held:
        return
    rank, key = data.draw(st.sampled_from(held))
    lost = ranks[rank].pop(key)
    with pytest.raises(ValueError, match=r"numbers|hold it|rank"):
        check(ranks, parts.shapes)
    ranks[rank] |= {key: lost, key + " again": lost}
    with pytest.raises(ValueError, match="twice"):
        AllParts(ranks)


def block(rows, columns) -> Part:
    cuts = [Cut(dim=dim, axes=("tp",), ranges=[held]) for dim, held in enumerate((rows, columns))]
    return Part(name="w", shape=(4, 2), cuts=cuts, holders=(0,))


def test_an_overlap_and_a_gap_of_one_size():
    """The ranks hold eight numbers of eight: (2, 0) twice, (3, 1) never."""
    held = block((0, 3), (0, 1)), block((0, 3), (1, 2)), block((2, 4), (0, 1))
    with pytest.raises(ValueError, match=r"\(\(2, 3\), \(0, 1\)\) is in two parts that differ"):
        check([dict(zip("abc", held, strict=True))], {"w": (4, 2)})


def test_sums_of_rows_in_another_order():
    """Both ranks hold rows 0, 2 and 3, but one of them stores row 0 last."""
    sums = {"holders": (0, 1), "pending": [(0, 1)]}
    orders = [[(0, 1), (2, 4)], [(2, 4), (0, 1)]]
    ranks = [part(cuts=[Cut(dim=0, axes=("tp",), ranges=r)], **sums) for r in orders]
    with pytest.raises(ValueError, match=r"w: ranks 0 and 1 store .* in different orders"):
        of(*ranks, part((1, 2), holders=[2]))
    assert of(ranks[1], ranks[1], part((1, 2), holders=[2]))
