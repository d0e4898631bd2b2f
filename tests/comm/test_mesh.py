"""Named axes: the ranks that share an axis, with and without processes."""

import pickle
import re

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from helpers.comm import mesh as meshes
from helpers.comm.mesh import Layout, make_mesh
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch

AXES = ("dp", "pp", "cp", "tp")
layouts = st.dictionaries(st.sampled_from(AXES), st.integers(1, 4), min_size=1).map(
    lambda sizes: Layout(**sizes)
)


@given(layouts, st.data())
def test_every_rank_is_in_one_group_of_those_that_differ_in_these_axes_only(layout, data):
    axes = data.draw(st.sets(st.sampled_from(layout.axes)))
    groups = layout.groups(*axes)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
    assert {len(group) for group in groups} == {layout.size(*axes)}
    for group in groups:
        assert group == sorted(group)
        places = [layout.coordinates(rank) for rank in group]
        for axis in set(layout.axes) - axes:
            assert len({place[axis] for place in places}) == 1
        for rank in group:
            assert layout.group_of(rank, *axes) == group


@given(layouts)
def test_a_rank_and_its_place_are_one(layout):
    ranks = torch.arange(layout.world_size).view(layout.shape)  # the order of PyTorch's meshes
    for rank in range(layout.world_size):
        place = layout.coordinates(rank)
        assert layout.rank(**place) == rank == ranks[tuple(place.values())].item()


def test_the_last_axis_are_neighbours():
    layout = Layout(dp=2, pp=2, tp=2)
    assert layout.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups("pp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.groups("dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert layout.groups("tp", "dp") == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert layout.groups() == [[rank] for rank in range(8)]
    assert layout.rank(dp=1, tp=1) == 5
    assert (layout.world_size, layout.size("dp", "tp"), layout.size()) == (8, 4, 1)


@given(layouts)
def test_the_grid_shows_every_rank_under_its_heads(layout):
    heads, *rows = layout.grid().splitlines()
    ends = [head.end() for head in re.finditer(r"\S+", heads)]
    hidden = 0
    if rows[-1].startswith("…"):
        hidden = int(rows.pop().split()[1])
    assert len(rows) + hidden == layout.world_size // layout.shape[-1]
    for row in rows:
        for column, end in enumerate(ends):
            rank = int(row[:end].split()[-1])
            place = layout.coordinates(rank)
            assert place[layout.axes[-1]] == column
            assert all(f"{axis}={place[axis]}" in row for axis in layout.axes[:-1])


def test_a_large_layout_is_cut_short():
    assert repr(Layout(tp=2)) == "Layout(tp=2): 2 ranks\n  tp=0  tp=1\n     0     1"
    assert repr(Layout(tp=1)).startswith("Layout(tp=1): 1 rank\n")
    layout = Layout(dp=2048, tp=8)
    assert layout.grid().endswith("… 1984 rows more")
    assert len(layout.grid().splitlines()) == 66
    assert layout.group_of(8195, "dp")[:2] == [3, 11]


def test_a_layout_is_plain_data():
    layout = Layout(dp=2, tp=4)
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert {layout: 1}[Layout(dp=2, tp=4)] == 1
    assert layout != Layout(tp=4, dp=2)  # the order counts
    with pytest.raises(AttributeError):
        layout.shape = (8,)


@pytest.mark.parametrize("size", [0, -1, 2.0, "2", True, None])
def test_a_size_that_is_none(size):
    with pytest.raises(ValueError, match="dp must be a positive whole number"):
        Layout(dp=size)


def test_what_is_not_there():
    layout = Layout(dp=2, tp=4)
    for call in (
        lambda: layout.size("pp"),
        lambda: layout.groups("dp", "pp"),
        lambda: layout.group_of(0, "pp"),
        lambda: layout.rank(pp=0),
    ):
        with pytest.raises(ValueError, match=r"no axis 'pp' in Layout\(dp=2, tp=4\)"):
            call()
    for rank in (8, -1):
        with pytest.raises(ValueError, match=f"no rank {rank}"):
            layout.coordinates(rank)
    for index in (4, -1):
        with pytest.raises(ValueError, match=f"tp={index} is out of range"):
            layout.rank(tp=index)
    with pytest.raises(ValueError, match="needs an axis"):
        Layout()


def sums(worker, sizes, axes, together=()):
    """Sum the ranks along each of these sets of axes; check what the mesh reports."""
    layout, proved = Layout(**sizes), []
    meshes.prove = lambda group: proved.append(dist.get_process_group_ranks(group))
    mesh = make_mesh(layout, worker.device, together)
    assert mesh.rank == worker.rank
    assert proved == [mesh.ranks(*some) for some in [*((axis,) for axis in sizes), *together]]
    found = []
    for some in axes:
        tensor = torch.tensor(worker.rank, device=worker.device)
        dist.all_reduce(tensor, group=mesh.group(*some))
        assert dist.get_process_group_ranks(mesh.group(*some)) == mesh.ranks(*some)
        assert dist.get_rank(mesh.group(*some)) == mesh.index(*some)
        assert dist.get_world_size(mesh.group(*some)) == mesh.size(*some)
        if mesh.size(*some) < layout.world_size:  # the ledger reads the axes from it
            described = "mesh_" + "_".join(axis for axis in sizes if axis in some)
            assert mesh.group(*some).group_desc == described
        found.append(tensor.item())
    return found, repr(mesh)


def test_groups_along_several_axes():
    sizes, together = {"dp": 2, "pp": 1, "cp": 2, "tp": 2}, [("cp", "dp"), ("dp", "tp")]
    axes = [*together, *((axis,) for axis in sizes), tuple(sizes)]
    runs = launch(sums, workers=8, sizes=sizes, axes=axes, together=together)
    layout = Layout(**sizes)
    for rank, (found, _) in enumerate(runs):
        assert found == [sum(layout.group_of(rank, *some)) for some in axes]
    assert runs[5][1].startswith(
        "rank 5 (dp=1, pp=0, cp=0, tp=1) of Layout(dp=2, pp=1, cp=2, tp=2)"
    )


def test_a_mesh_for_another_world():
    with Cluster(2) as cluster:
        with pytest.raises(WorkerError, match=r"Layout\(dp=2, tp=4\) is 8: it must be 2"):
            cluster.run(lambda worker: make_mesh(Layout(dp=2, tp=4)))
        with pytest.raises(WorkerError, match=r"Layout\(dp=1\) is 1: it must be 2"):
            cluster.run(lambda worker: make_mesh(Layout(dp=1)))


def test_axes_without_a_group_together():
    def ask(worker, axes, together=()):
        return make_mesh(Layout(dp=2, cp=1, tp=1), together=together).group(*axes).size()

    with pytest.raises(WorkerError, match=r"\('dp', 'cp'\) have no common group: use make_mesh"):
        launch(ask, workers=2, axes=("cp", "dp"))
    with pytest.raises(WorkerError, match="no axis 'pp'"):
        launch(ask, workers=2, axes=("dp",), together=[("dp", "pp")])


def test_a_mesh_without_ranks():
    with pytest.raises(RuntimeError, match="inside a function that `launch` runs"):
        make_mesh(Layout(dp=1))


def test_pytorch_builds_on_the_same_mesh():
    def shard(worker):
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = make_mesh(Layout(dp=2, tp=2), worker.device)
        whole = torch.arange(8, device=worker.device)
        return distribute_tensor(whole, mesh.device_mesh["tp"], [Shard(0)]).to_local().tolist()

    runs = launch(shard, workers=4)
    assert list(runs) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


def test_groups_are_made_for_the_device_of_the_tensors():
    """A device has no number here: PyTorch takes that of each rank."""

    def kind(worker, device):
        asked = []
        meshes.init_device_mesh = lambda kind, *_, **__: asked.append(kind)
        with pytest.raises(AttributeError):  # there is no mesh
            make_mesh(Layout(dp=1), device)
        return asked

    with Cluster(1) as cluster:
        assert cluster.run(kind, device=torch.device("cuda", 3))[0] == ["cuda"]
        assert cluster.run(kind, device="cpu")[0] == ["cpu"]
