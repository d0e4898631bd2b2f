"""Real ranks complete each pending sum once, along any combination of axes."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.runtime.failure import WorkerError
from helpers.state import pending as module
from helpers.state.all_parts import AllParts
from helpers.state.part import Part
from helpers.state.pending import complete, global_norm, make_groups, rounds
from helpers.state.placing import only, pending, whole
from helpers.state.slicing import take
from tests.state.cases import everyone, layouts, models


def gradient(name: str, shape, rank: int, dtype=torch.float64) -> torch.Tensor:
    """Whole numbers, so that their sums are exact in any order."""
    generator = torch.Generator().manual_seed(1000 * rank + int(name[1:]))
    return torch.randint(1, 9, shape, generator=generator).to(dtype)


def summed(worker, sizes, recipes, dtypes):
    """Complete, and compare with the sum over the ranks that the recipe's axes name."""
    layout = Layout(**sizes)
    mesh, parts = make_mesh(layout), everyone(layout, recipes)
    own = parts.ranks[worker.rank]
    of = lambda part, rank: take(part, gradient(part.name, part.shape, rank, dtypes[part.name]))  # noqa: E731
    local = {key: of(part, worker.rank) for key, part in own.items()}
    done, found = complete(own, local, make_groups(mesh, parts))
    assert done == parts.completed.ranks[worker.rank]
    for recipe in recipes:
        key = f"{recipe.name} of rank {worker.rank}"
        if key not in own:
            continue
        part = own[key]
        axes = {axis for step in recipe.steps if step[0] == "pending" for axis in step[1:]}
        ranks = [r for r in layout.group_of(worker.rank, *axes) if r in part.holders]
        expected = torch.stack([of(part, rank) for rank in ranks]).sum(0, dtype=dtypes[recipe.name])
        assert torch.equal(found[key], expected), part
        assert found[key] is local[key]  # in place
    global_norm(parts.completed, found)  # does not raise now


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_combination_of_axes(cluster, data):
    layout = data.draw(layouts(4))
    recipes = data.draw(models(layout))
    some = st.sampled_from([torch.float64, torch.float32, torch.bfloat16])
    dtypes = {recipe.name: data.draw(some) for recipe in recipes}
    sizes = dict(zip(layout.axes, layout.shape, strict=True))
    cluster.run(summed, sizes=sizes, recipes=recipes, dtypes=dtypes)


TIED = Layout(dp=2, pp=2)


def tied_parts(seat) -> dict[str, Part]:
    """An embedding on both stages and a matrix on each stage, all of them data parallel."""
    embedding = pending(seat, pending(seat, whole(seat, "t0", (3, 2)), "pp"), "dp")
    stage = seat.layout.coordinates(seat.rank)["pp"]
    matrix = pending(seat, only(seat, whole(seat, f"t{1 + stage}", (4,)), "pp", [stage]), "dp")
    return {"embedding": embedding, "matrix": matrix}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_ranks_without_data(cluster, dtype):
    """Only rank 3 has gradients. No rank has a gradient of the first stage's matrix."""

    def sums(worker, dtype):
        mesh = make_mesh(TIED)
        own = tied_parts(mesh)
        parts = AllParts.exchanged(own)
        local = dict.fromkeys(own)
        if worker.rank == 3:
            local = {"embedding": torch.ones(3, 2), "matrix": torch.full((4,), 2.0)}
            local = {key: gradient.to(dtype) for key, gradient in local.items()}
        groups = make_groups(mesh, parts)
        with ledger() as log:
            _, found = complete(own, local, groups)
        if worker.rank == 0:  # only the embedding's gradient travels, and only over dp
            assert log.of("all_reduce").payload == 6 * dtype.itemsize
        assert {g.dtype for g in found.values() if g is not None} == {dtype}
        return {key: None if g is None else g.tolist() for key, g in found.items()}

    ones, twos = [[1.0, 1.0]] * 3, [2.0] * 4
    first, last = {"embedding": ones, "matrix": None}, {"embedding": ones, "matrix": twos}
    assert list(cluster.run(sums, dtype=dtype)) == [first, last, first, last]


def test_completed_once(cluster):
    """With the parts that `complete` returns, a second call sums and sends nothing."""

    def twice(worker):
        mesh = make_mesh(TIED)
        own = tied_parts(mesh)
        groups = make_groups(mesh, AllParts.exchanged(own))
        assert all(worker.rank in ranks for ranks in groups)  # a rank keeps its own groups alone
        done, found = complete(own, {k: torch.ones(p.shape) for k, p in own.items()}, groups)
        with ledger() as log:
            again, same = complete(done, found, groups)
        assert (again, same) == (done, found)
        assert not log.entries
        return [found["embedding"][0, 0].item(), found["matrix"][0].item()]

    assert list(cluster.run(twice)) == [[4.0, 2.0]] * 4


def test_ranks_that_name_their_parts_in_another_order(cluster):
    def sums(worker):
        mesh = make_mesh(Layout(dp=4))
        own = {name: pending(mesh, whole(mesh, name, (2,)), "dp") for name in ("t1", "t2", "t3")}
        if worker.rank % 2:
            own = dict(reversed(own.items()))
        groups = make_groups(mesh, AllParts.exchanged(own))
        local = {name: torch.full((2,), float(name[1:])) for name in own}
        _, found = complete(own, local, groups)
        return {name: found[name][0].item() for name in ("t1", "t2", "t3")}

    assert list(cluster.run(sums)) == [{"t1": 4.0, "t2": 8.0, "t3": 12.0}] * 4


def test_small_ones_travel_together(cluster):
    def messages(worker):
        mesh = make_mesh(Layout(dp=4))
        own = {f"t{i}": pending(mesh, whole(mesh, f"t{i}", (i,)), "dp") for i in range(1, 30)}
        groups = make_groups(mesh, AllParts.exchanged(own))
        assert groups[0, 1, 2, 3] is mesh.group("dp")
        with ledger() as log:
            complete(own, {k: torch.ones(p.shape) for k, p in own.items()}, groups)
        return [entry.payload for entry in log.of("all_reduce").entries]

    assert list(cluster.run(messages)) == [[4 * sum(range(1, 30))]] * 4


@pytest.mark.parametrize("rank", [0, 6])
def test_which_groups_are_there_and_which_are_made(monkeypatch, rank):
    """All ranks make the groups that the mesh lacks, in one order, and keep their own."""
    made, proved = [], []
    monkeypatch.setattr(
        module.dist, "new_group", lambda ranks, **_: made.append(ranks) or str(ranks)
    )
    monkeypatch.setattr(module, "prove", proved.append)
    layout = Layout(dp=2, pp=2, tp=2)  # rank = 4 dp + 2 pp + tp
    together = {("dp", "pp"): None}
    mesh = SimpleNamespace(layout=layout, together=together, rank=rank, group=lambda *axes: axes)

    def own(r):
        groups = [layout.group_of(r, *axes) for axes in (["tp"], ["pp"], ["dp"], ["dp", "pp"])]
        groups += [range(8), [r, 7 - r], layout.group_of(r, "dp", "tp")]
        return {str(g): SimpleNamespace(pending=[tuple(sorted(g))]) for g in groups}

    found = make_groups(mesh, SimpleNamespace(ranks=[own(r) for r in range(8)]))
    pairs = [(r, 7 - r) for r in range(4)]
    squares = [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert made == [list(group) for group in sorted([*pairs, *squares])]
    assert proved == [str(ranks) for ranks in made]
    place = {0: ((0, 1), (0, 2), (0, 4)), 6: ((6, 7), (4, 6), (2, 6))}[rank]
    new = [group for group in map(tuple, made) if rank in group]
    assert found == {
        place[0]: ("tp",),
        place[1]: ("pp",),
        place[2]: ("dp",),
        (0, 2, 4, 6): ("dp", "pp"),
        tuple(range(8)): ("dp", "pp", "tp"),
        **{group: str(list(group)) for group in new},
    }
    assert len(new) == 2


def test_first_sums_come_before_second_ones():
    """Whatever the dict's order; within a turn, by group."""
    one = Part(name="b", shape=(1,), holders=range(4), pending=[(0, 2), (0, 1)])
    two = Part(name="a", shape=(1,), holders=range(4), pending=[(0, 1), (0, 2)])
    expected = [((0, 1), ["two"]), ((0, 2), ["one"]), ((0, 1), ["one"]), ((0, 2), ["two"])]
    assert list(rounds({"one": one, "two": two})) == expected
    assert list(rounds({"two": two, "one": one})) == expected


def test_parts_of_one_tensor_are_summed_in_the_tensor_s_order():
    """Whatever their keys: another rank may have other keys, in another order."""

    def part(start, name="w"):
        about = {"holders": range(2), "pending": [(0, 1)]}
        return Part(name=name, shape=(9,), flat=(start, start + 3), **about)

    own = {"a": part(6), "b": part(0, "v"), "c": part(3), "d": part(0)}
    assert list(rounds(own)) == [((0, 1), ["b", "d", "c", "a"])]
    assert list(rounds(dict(reversed(own.items())))) == [((0, 1), ["b", "d", "c", "a"])]
    empty = {"e": Part(name="w", shape=(9,), flat=(4, 4), holders=range(2), pending=[(0, 1)])}
    assert list(rounds(empty)) == []


@pytest.mark.parametrize(
    ("local", "message"),
    [
        ({"w": torch.ones(3)}, r"shape \(3,\), not \(2,\)"),
        ({}, "'w' has a part but no gradient"),
        ({"w": torch.ones(2), "v": torch.ones(2)}, "'v' has a part but no gradient"),
        ({"w": torch.ones(2).long()}, "the gradient of w is of torch.int64"),
        ({"w": "by rank"}, r"gradients of w have .*: \['torch.float32', 'torch.float64'\]"),
    ],
)
def test_invalid_gradients(cluster, local, message):
    def sums(worker, local):
        mesh = make_mesh(Layout(dp=4))
        own = {"w": pending(mesh, whole(mesh, "w", (2,)), "dp")}
        if isinstance(local.get("w"), str):
            local = {"w": torch.ones(2, dtype=[torch.float32, torch.float64][worker.rank % 2])}
        complete(own, local, make_groups(mesh, AllParts.exchanged(own)))

    with pytest.raises(WorkerError, match=message):
        cluster.run(sums, local=local)


def test_several_gradients_of_which_each_rank_lacks_another(monkeypatch):
    """The other rank has a and b: one in float32, like ours, and one in float64."""
    parts = {name: Part(name=name, shape=(2,), holders=range(2)) for name in "abc"}

    def with_the_other(row, op, group):
        row.copy_(torch.maximum(row, torch.tensor([2, 1, 0, -2, -1, -5])))

    monkeypatch.setattr(module, "carrier", lambda group: torch.device("cpu"))
    monkeypatch.setattr(module, "recursive_doubling_all_reduce", with_the_other)
    one, low = torch.ones(2), torch.ones(2).bfloat16()
    module.fill_up(parts, list("abc"), found := {"a": one, "b": None, "c": low}, "group", "meta")
    assert found["a"] is one
    assert found["c"] is low
    assert (found["b"].dtype, found["b"].shape, found["b"].is_meta) == (torch.float64, (2,), True)
    with pytest.raises(ValueError, match="gradients of b have different dtypes"):
        module.fill_up(parts, list("abc"), {"a": one, "b": one, "c": None}, "group", "cpu")


def test_gradients_that_are_views_are_summed_in_place(monkeypatch):
    """A column of a matrix and a transposed one: their memory is not one row."""

    class WithTheOther:
        def __init__(self, group):
            assert group == "a group"

        def all_reduce(self, row):
            row += torch.arange(row.numel())
            return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(module, "GroupTransport", WithTheOther)
    monkeypatch.setattr(module, "carrier", lambda group, device: device)
    column, turned = torch.zeros(3, 2), torch.zeros(2, 3)
    module.sum_over("a group", [column[:, 1], turned.t()])
    assert column.tolist() == [[0, 0], [0, 1], [0, 2]]
    assert turned.t().tolist() == [[3, 4], [5, 6], [7, 8]]
