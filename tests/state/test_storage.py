"""Parts become DTensors with the same numbers, or raise an error; a checkpoint stores them."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard

from helpers.comm.mesh import Layout, make_mesh
from helpers.runtime.failure import WorkerError
from helpers.state.all_parts import AllParts
from helpers.state.part import Cut, Part
from helpers.state.placing import Seat, cut, flat, only, whole
from helpers.state.slicing import take
from helpers.state.storage import Storage, as_dtensor, even, placements, representable
from tests.state.cases import everyone, layouts, models, numbers


def there_and_back(worker, sizes, recipes):
    layout = Layout(**sizes)
    mesh, parts = make_mesh(layout), everyone(layout, recipes)
    plain = {name: numbers(shape) for name, shape in parts.shapes.items()}
    local = {key: take(part, plain[part.name]) for key, part in parts.ranks[worker.rank].items()}
    storage = Storage(mesh, parts)
    stored = storage.stored(local)
    room = storage.empty(dict.fromkeys(plain, torch.float64))
    assert {n: type(t) for n, t in room.items()} == {n: type(t) for n, t in stored.items()}
    for name, tensor in stored.items():
        assert tensor.shape == plain[name].shape
        inner = [getattr(t, "to_local", lambda t=t: t)() for t in (room[name], tensor)]
        inner[0].copy_(inner[1])
    found = storage.local(room)
    assert found.keys() == local.keys()
    assert all(torch.equal(found[key], local[key]) for key in local)


@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_there_and_back(cluster, data):
    layout = data.draw(layouts(4))
    recipes = data.draw(models(layout))
    sizes = dict(zip(layout.axes, layout.shape, strict=True))
    cluster.run(there_and_back, sizes=sizes, recipes=recipes)


def test_replicas_of_several_dtypes_are_refused(cluster):
    """A DTensor could be made of them, and a checkpoint would have the bytes of either."""

    def store(worker):
        mesh = make_mesh(Layout(dp=2, tp=2))
        own = {"a": cut(mesh, whole(mesh, "a", (4, 4)), 0, "tp")}
        local = {"a": torch.ones(2, 4, dtype=[torch.float32, torch.float64][worker.rank // 2])}
        Storage(mesh, AllParts.exchanged(own)).stored(local)

    with pytest.raises(WorkerError, match="a: the ranks that hold it have different dtypes"):
        cluster.run(store)


def test_two_parts_of_a_tensor_on_one_rank_are_not_one_dtensor():
    """DTensor could represent each alone: rows 2:4 as a cut along dp, rows 0:2 along tp."""
    layout = Layout(dp=2, tp=2)

    def rows(which, axis):
        cuts = [Cut(dim=0, axes=(axis,), ranges=[which])]
        holders = [0, 1, 2] if which == (0, 2) else [2, 3]
        return Part(name="w", shape=(4,), cuts=cuts, holders=holders)

    low, high = rows((0, 2), "dp"), rows((2, 4), "dp")
    both = {"high": high, "low": rows((0, 2), "tp")}
    assert all(placements(layout, 2, part) is not None for part in both.values())
    assert not representable(layout, AllParts([{"w": low}, {"w": low}, both, {"w": high}]), "w")


GRID = Layout(dp=2, pp=2, tp=2)


def said(place, layout=GRID, shape=(8, 6), rank=0):
    seat = Seat(layout, rank)
    return placements(layout, rank, place(seat, whole(seat, "w", shape)))


def test_representable_parts():
    everywhere = {"dp": Replicate(), "pp": Replicate(), "tp": Replicate()}
    assert said(lambda s, p: p) == everywhere
    assert said(lambda s, p: cut(s, p, 1, "tp")) == everywhere | {"tp": Shard(1)}
    assert said(lambda s, p: cut(s, cut(s, p, 0, "dp"), 0, "tp")) == {
        "dp": Shard(0),
        "pp": Replicate(),
        "tp": Shard(0),
    }
    # a stage, and a tied embedding on two of three stages: a DTensor on a slice of the mesh
    assert said(lambda s, p: only(s, p, "pp", [0])) == {"dp": Replicate(), "tp": Replicate()}
    three = Layout(dp=2, pp=3)
    assert said(lambda s, p: only(s, p, "pp", [0, 2]), three) == {"dp": Replicate()}
    assert said(lambda s, p: only(s, p, "pp", [0]), Layout(pp=2)) == {}


def test_parts_that_dtensor_cannot_represent():
    assert said(lambda s, p: flat(s, p, "dp")) is None
    assert said(lambda s, p: cut(s, p, 0, "tp", [[(0, 2), (4, 6)], [(2, 4), (6, 8)]])) is None
    assert said(lambda s, p: cut(s, p, 0, "tp", [[(0, 3)], [(3, 8)]])) is None
    # cut along tp first, then along dp, as FSDP2 with tensor parallel does: not the mesh's order
    assert said(lambda s, p: cut(s, cut(s, p, 0, "tp"), 0, "dp")) is None
    # 5 rows over 4 ranks: ours are 2 1 1 1, DTensor's are 2 2 1 0
    five = [said(lambda s, p: cut(s, p, 0, "tp"), Layout(tp=4), (5,), r) for r in range(4)]
    assert five == [{"tp": Shard(0)}, None, None, None]


def test_dtensors_own_uneven_cut_can_be_asked_for():
    layout = Layout(tp=4)
    where = [even(layout, rank, ("tp",), 5) for rank in range(4)]
    assert where == [((0, 2),), ((2, 4),), ((4, 5),), ()]
    for rank in range(4):
        assert said(lambda s, p: cut(s, p, 0, "tp", where), layout, (5,), rank) == {"tp": Shard(0)}


@given(layouts(), st.integers(0, 9), st.data())
def test_even_is_how_torch_chunks(layout, size, data):
    axes = layout.known(data.draw(st.sets(st.sampled_from(layout.axes))))
    for rank in range(layout.world_size):
        indices = torch.arange(size)
        for axis in axes:
            chunks = indices.chunk(layout.size(axis))
            place = layout.coordinates(rank)[axis]
            indices = chunks[place] if place < len(chunks) else indices[:0]
        held = [i for start, stop in even(layout, rank, axes, size) for i in range(start, stop)]
        assert held == indices.tolist()


def whole_again(worker, sizes, recipes):
    """PyTorch gathers the DTensor. The result is the plain tensor."""
    layout, found = Layout(**sizes), 0
    mesh, parts = make_mesh(layout), everyone(layout, recipes)
    for name, shape in parts.shapes.items():
        plain, own = numbers(shape), parts.ranks
        every = [(r, part) for r, p in enumerate(own) for part in p.values() if part.name == name]
        if any(placements(layout, r, part) in (None, {}) for r, part in every):
            continue
        if part := dict(every).get(worker.rank):
            local = torch.nn.Parameter(take(part, plain))
            tensor = as_dtensor(mesh, part, local)
            assert tensor.to_local().data_ptr() == local.data_ptr()
            assert torch.equal(tensor.full_tensor(), plain)
            assert tensor.stride() == plain.stride()
            assert not tensor.requires_grad  # a checkpoint needs no graph
            found += 1
    return found


def test_pytorch_reads_the_same_tensor(cluster):
    total = 0

    @settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def drawn(data):
        nonlocal total
        layout = data.draw(layouts(4))
        recipes = data.draw(models(layout))
        sizes = dict(zip(layout.axes, layout.shape, strict=True))
        total += sum(cluster.run(whole_again, sizes=sizes, recipes=recipes))

    drawn()
    assert total > 20  # DTensor could represent some of the random parts


def test_refusals():
    layout = Layout(dp=2)
    seat = Seat(layout, 0)

    class Mesh:
        rank = 0

    mesh = Mesh()
    mesh.layout = layout
    part = flat(seat, whole(seat, "w", (3,)), "dp")
    with pytest.raises(ValueError, match="DTensor cannot represent w"):
        as_dtensor(mesh, part, torch.zeros(2))
    with pytest.raises(ValueError, match="the local tensor of w"):
        as_dtensor(mesh, part, torch.zeros(3))
