"""Sums, norms and states over all ranks' parts; a number's sum over one group after the other."""

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.parallel.world import ALONE, GlobalSum, World
from helpers.runtime.launch import launch
from helpers.state.placing import cut, only, pending, whole

pytestmark = pytest.mark.usefixtures("kept_ranks")


def alone(**tensors):
    return World({name: whole(ALONE, name, t.shape) for name, t in tensors.items()}, None)


def test_a_norm_in_16_bits_adds_its_squares_in_32():
    gradients = {"a": torch.full((1000,), 1.0, dtype=torch.bfloat16), "b": torch.ones(24)}
    world = alone(**gradients)
    assert world.everywhere
    assert world.norm(gradients).item() == pytest.approx(32, rel=1e-6)  # of 1024 ones
    assert world.norm(gradients).dtype == torch.float32
    assert world.norm({}) == 0
    precise = {"a": torch.tensor([1.0, 1e-5], dtype=torch.float64)}
    assert alone(**precise).norm(precise).item() == pytest.approx((1 + 1e-10) ** 0.5, abs=1e-15)


def test_what_it_returns_is_a_copy():
    tensor, slots = torch.ones(2), {"exp_avg": torch.ones(2), "step": 3}
    world = alone(a=tensor)
    gradients, state = (
        world.full_gradients({"a": tensor}),
        world.full_state({"a": tensor}, {"a": slots}),
    )
    tensor.zero_()
    slots["exp_avg"].zero_()
    assert gradients["a"].tolist() == state["model"]["a"].tolist() == [1, 1]
    assert state["optimizer"]["a"]["exp_avg"].tolist() == [1, 1]
    assert state["optimizer"]["a"]["step"] == 3


def test_what_it_returns_has_the_plain_model_s_names():
    """A stage's own names differ."""
    tensors = {"0.a": torch.ones(2), "1.b": torch.full((3,), 2.0)}
    world = World({key: whole(ALONE, key[2:], t.shape) for key, t in tensors.items()}, None)
    assert world.everywhere
    assert {n: g.tolist() for n, g in world.full_gradients(tensors).items()} == {
        "a": [1, 1],
        "b": [2, 2, 2],
    }
    state = world.full_state(tensors, {"1.b": {"step": 3}})
    assert state["model"].keys() == {"a", "b"}
    assert state["optimizer"] == {"b": {"step": 3}}


def sums(worker):
    """On a mesh of dp and tp: gradients of 1, summed over both axes, and over tp alone."""
    mesh = make_mesh(Layout(dp=2, tp=2))
    shared = pending(mesh, pending(mesh, whole(mesh, "shared", (4,)), "tp"), "dp")
    rows = pending(mesh, cut(mesh, whole(mesh, "rows", (4,)), 0, "tp"), "dp")
    world = World({"shared": shared, "rows": rows}, mesh)
    found = {"everywhere": world.everywhere}
    summed = World({"none": whole(mesh, "none", (1,))}, mesh)  # a sum that is not pending
    assert summed.complete({"none": torch.ones(1)}, [tuple(mesh.ranks("dp"))])["none"] == 1
    for name, done in (("all", ()), ("tp", [tuple(mesh.ranks("dp"))])):
        given = {"shared": torch.ones(4), "rows": torch.ones(2)}
        found[name] = {key: g[0].item() for key, g in world.complete(given, done).items()}
    # a rank without a gradient gets the sum of the others
    given = {} if mesh.index("dp") else {"shared": torch.ones(4), "rows": torch.ones(2)}
    found["missing"] = {key: g[0].item() for key, g in world.complete(given, ()).items()}
    assert world.complete({}, ()) == {}  # no rank has one
    ones = {"shared": torch.ones(4), "rows": torch.ones(2)}
    return found | {"norm": world.norm(ones).item(), "full": world.full_gradients(ones)}


def test_only_the_sums_that_are_not_done_are_made():
    for run in launch(sums, 4, device="cpu"):
        assert not run["everywhere"]
        assert run["all"] == {"shared": 4, "rows": 2}
        assert run["tp"] == {"shared": 2, "rows": 1}
        assert run["missing"] == {"shared": 2, "rows": 1}
        assert run["norm"] == pytest.approx(8**0.5)  # each plain number counts once
        assert {name: tuple(g.shape) for name, g in run["full"].items()} == {
            "shared": (4,),
            "rows": (4,),
        }


def stages(worker):
    """Rank 0 has both tensors, rank 1 has one."""
    mesh = make_mesh(Layout(pp=2))
    parts = {name: only(mesh, whole(mesh, name, (1,)), "pp", homes)
             for name, homes in (("both", (0, 1)), ("first", (0,)))}  # fmt: skip
    world = World({name: part for name, part in parts.items() if part}, mesh)
    norm = world.norm({name: torch.ones(1) for name in world.own})
    return world.everywhere, norm.item()


def test_a_rank_without_a_tensor_gets_the_norm_of_all():
    assert list(launch(stages, 2, device="cpu")) == [(False, pytest.approx(2**0.5))] * 2


class Alike:
    """The transport of some ranks that all have the same number; a sum is made by its `wait`."""

    def __init__(self, size):
        self.size = size

    def all_reduce(self, buffer):
        self.buffer = buffer
        return self

    def wait(self):
        self.buffer *= self.size


def test_every_group_multiplies_the_number_by_its_ranks():
    for sizes, times in (((), 1), ((2,), 2), ((2, 3), 6), ((2, 3, 5), 30)):
        groups = [Alike(size) for size in sizes]
        total = GlobalSum(groups, "cpu", 7.0)
        total.add(torch.tensor(4.0))
        assert total.send().wait() == 11 * times
        assert total.wait() == 11 * times  # a second wait adds nothing
        assert [group.size for group in groups] == list(sizes)  # for the next sum


def test_it_adds_in_float64():
    total = GlobalSum([], "cpu", 2**24)
    total.add(torch.tensor(1.0))
    assert total.wait() == 2**24 + 1
    assert total.wait().dtype == torch.float64
