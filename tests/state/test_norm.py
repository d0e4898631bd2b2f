"""The global norm equals one process's on any layout, with the same bits on every rank."""

import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.comm.mesh import Layout
from helpers.state.all_parts import AllParts
from helpers.state.part import Part
from helpers.state.pending import global_norm, norms
from helpers.state.placing import Seat, cut, whole
from helpers.state.slicing import take
from tests.state.cases import everyone, layouts, models


def gradient(shape, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def measured(worker, ranks, plain):
    parts = AllParts(ranks)
    local = {key: take(p, plain[p.name]) for key, p in parts.ranks[worker.rank].items()}
    norm = global_norm(parts, local)
    assert norm.dtype == torch.float64
    return norm.item().hex()


@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_on_ranks_as_in_one_process(cluster, data):
    layout = data.draw(layouts(4))
    parts = everyone(layout, data.draw(models(layout))).completed
    plain = {name: gradient(shape, i) for i, (name, shape) in enumerate(parts.shapes.items())}
    whole_norm = math.sqrt(sum(tensor.square().sum().item() for tensor in plain.values()))
    runs = cluster.run(measured, ranks=[dict(own) for own in parts.ranks], plain=plain)
    assert len(set(runs)) == 1
    assert float.fromhex(runs[0]) == pytest.approx(whole_norm, rel=1e-14)


def in_columns(dtype):
    """Parts of a matrix cut along tp and a bias on all ranks; their plain gradients."""
    seats = [Seat(Layout(tp=4), rank) for rank in range(4)]
    ranks = [
        {"w": cut(s, whole(s, "w", (64, 31)), 1, "tp"), "b": whole(s, "b", (31,))} for s in seats
    ]
    return ranks, {"w": gradient((64, 31), 1).to(dtype), "b": gradient((31,), 2).to(dtype)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_summed_in_a_wider_type(cluster, dtype):
    """A sum of 1984 squares in bf16 would be off by percents; fp16 overflows at 65504."""
    ranks, plain = in_columns(dtype)
    plain = {name: tensor * 100 for name, tensor in plain.items()}
    exact = math.sqrt(sum(t.double().square().sum().item() for t in plain.values()))
    runs = cluster.run(measured, ranks=ranks, plain=plain)
    assert float.fromhex(runs[0]) == pytest.approx(exact, rel=1e-6)


def test_the_holders_take_turns():
    """Of three tensors on three ranks, each rank computes the norm of one."""
    seats = [Seat(Layout(dp=3), rank) for rank in range(3)]
    parts = AllParts({n: whole(s, n, (2,)) for n in "abc"} for s in seats)
    plain = dict(zip("abc", torch.eye(3)[:, :2] + 1, strict=True))
    rows = torch.stack([norms(parts, plain, rank) for rank in range(3)])
    assert (rows != 0).sum(0).tolist() == (rows != 0).sum(1).tolist() == [1, 1, 1]


class Launches(TorchDispatchMode):
    """Counts the operators, each at least a launch on a GPU."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_the_launches_do_not_grow_with_the_tensors_and_each_norm_is_that_of_its_tensor():
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    counts = []
    for size in (3, 30):
        seat = Seat(Layout(dp=1), 0)
        names = [f"{number:02d}" for number in range(size)]
        parts = AllParts([{name: whole(seat, name, (7, 5)) for name in names}])
        plain = {n: gradient((7, 5), int(n)).to(dtypes[int(n) % 3]) for n in names}
        plain[names[0]] = None
        with Launches() as launches:
            row = norms(parts, plain, 0)
        counts.append(launches.count)
        for name, norm in zip(names, row, strict=True):
            own = torch.zeros(()) if plain[name] is None else plain[name]
            wide = torch.promote_types(own.dtype, torch.float32)
            assert norm == torch.linalg.vector_norm(own, dtype=wide)
    assert counts[0] == counts[1]


def in_a_group(worker):
    """Ranks 1 and 3 of four have a model of their own, with one number on each."""
    group = dist.new_group([1, 3])
    if worker.rank % 2 == 0:
        return None
    seats = [Seat(Layout(tp=2), rank) for rank in range(2)]
    parts = AllParts({"w": cut(s, whole(s, "w", (2,)), 0, "tp")} for s in seats)
    local = {"w": torch.tensor([float(worker.rank + 2)])}  # 3 and 5
    return global_norm(parts, local, group).item() ** 2


def test_the_norm_of_the_ranks_of_a_group(cluster):
    norm = pytest.approx(34, rel=1e-6)
    assert list(cluster.run(in_a_group)) == [None, norm, None, norm]


@pytest.mark.parametrize("bad", [-math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_so_on_every_rank(cluster, bad):
    ranks, plain = in_columns(torch.float32)
    plain["w"][3, 17] = bad
    runs = cluster.run(measured, ranks=ranks, plain=plain)
    assert not any(math.isfinite(float.fromhex(norm)) for norm in runs)


def test_frozen_tensors_and_ranks_with_nothing(cluster):
    def norm(worker):
        part = Part(name="w", shape=(2,), holders=[1])
        frozen = Part(name="f", shape=(2,), holders=[0, 2])
        parts = AllParts([{"f": frozen}, {"w": part}, {"f": frozen}, {}])
        local = [{"f": None}, {"w": torch.tensor([3.0, 4.0])}, {}, {}][worker.rank]
        return global_norm(parts, local).item()

    assert list(cluster.run(norm)) == [5.0] * 4
