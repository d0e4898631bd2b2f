"""A checkpoint stores DTensors where they can represent the parts, even rows otherwise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.comm.mesh import Layout, make_mesh
from helpers.runtime.failure import WorkerError
from helpers.state.all_parts import AllParts
from helpers.state.part import Cut, Part
from helpers.state.placing import cut, whole
from helpers.state.slicing import take
from helpers.state.storage import Storage, placements, representable
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
