"""A flat, sharded buffer: the solution passes; each common mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week06.flat import numbers, row
from notebooks.solutions import week06
from tests.check.asked import drawn_anew
from tests.check.told import told

pytestmark = pytest.mark.usefixtures("shared_ranks")


def flat_shard(
    *,
    pad="zeros",
    size="up",
    cut="own",
    copy=True,
    room=0,
    collective="all_gather",
    keep="shapes",
    trim=True,
    shaped=True,
    fresh=True,
    dtype=None,
):
    """The solution, with one part of it changed."""

    def solve(worker, tensors):
        n, rank = worker.world_size, worker.rank
        shapes = [tensor.shape for tensor in tensors]
        numbers = sum(tensor.numel() for tensor in tensors)
        length = {"up": -(-numbers // n), "down": numbers // n, "more": numbers // n + 1}[size]
        if size == "whole":
            length = numbers
        flat = torch.full((max(length * n, numbers),), 0.0 if pad == "zeros" else 9.0)
        flat = flat.to(dtype or tensors[0].dtype)
        flat[:numbers] = torch.cat([tensor.flatten() for tensor in tensors])
        if pad == "none":
            flat = flat[:numbers]
        first = {"own": rank, "first": 0, "reversed": n - 1 - rank}[cut] * length
        shard = flat[first : first + length]
        if cut == "whole":
            shard = flat
        if copy:
            shard = torch.cat([shard, shard.new_zeros(room)])[: len(shard)]
        held = {"shapes": shapes, "tensors": tensors, "flat": flat}[keep]
        old = None if fresh else shard.clone()

        def gather(shard):
            assert held is not None
            whole = shard.new_zeros(len(shard) * n)
            shard = shard if fresh else old
            if collective == "all_gather":
                dist.all_gather(list(whole.split(len(shard))), shard)
            else:
                whole[rank * len(shard) : (rank + 1) * len(shard)] = shard
                dist.all_reduce(whole)
            if trim:
                whole = whole[:numbers]
            parts = whole.split([shape.numel() for shape in shapes])
            if not shaped:
                return list(parts)
            return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

        return shard, gather

    return solve


def strided(worker, tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    n = worker.world_size
    padded = flat.new_zeros(-(-len(flat) // n) * n)
    padded[: len(flat)] = flat
    return padded[worker.rank :: n].clone(), lambda shard: []


def everything(worker, tensors):
    return torch.cat([tensor.flatten() for tensor in tensors]), lambda shard: []


def unflattened(worker, tensors):
    return tensors[0].clone(), lambda shard: []


def in_place(worker, tensors):
    tensors[-1].zero_()
    return week06.shard_flat(worker, tensors)


def of_the_caller(worker, tensors):
    shard, gather = week06.shard_flat(worker, tensors)
    if len(tensors) == 1 and worker.world_size == 1:
        shard = tensors[0].flatten()
    return shard, gather


def view_of_the_first(worker, tensors):
    """Right numbers on rank 0: they are the first tensor's."""
    shard, gather = week06.shard_flat(worker, tensors)
    first = tensors[0].flatten()
    return first[: len(shard)] if worker.rank == 0 and len(shard) < len(first) else shard, gather


def only_the_first(worker, tensors):
    shard, gather = week06.shard_flat(worker, tensors)
    return shard, lambda shard: gather(shard)[:1]


def as_one(worker, tensors):
    shard, gather = week06.shard_flat(worker, tensors)
    return shard, lambda shard: torch.cat([t.flatten() for t in gather(shard)])


def test_the_solution_passes():
    verdict = check.shard_flat(week06.shard_flat)
    assert verdict, verdict


def test_the_helper_is_the_solution():
    verdict = check.shard_flat(flat_shard())
    assert verdict, verdict


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (flat_shard(pad="nines"), "A norm over the shards adds its square"),
        (flat_shard(pad="none"), "different lengths"),
        (flat_shard(size="down"), "left a tail"),
        (flat_shard(size="more"), "at least"),
        (flat_shard(cut="first"), "the same shard"),
        (flat_shard(cut="reversed"), "in another order"),
        (flat_shard(copy=False), "a view"),
        (flat_shard(room=1), "A slice is a view"),
        (flat_shard(keep="tensors"), "Shapes are enough"),
        (flat_shard(keep="flat"), "Shapes are enough"),
        (flat_shard(fresh=False), "Shapes are enough"),
        (flat_shard(collective="all_reduce"), "twice the bytes"),
        (flat_shard(trim=False), "padding at its end"),
        (flat_shard(shaped=False), "each tensor has its shape"),
        (flat_shard(dtype=torch.float32), "torch.zeros"),
        (strided, "in another order"),
        (everything, "Every rank has all numbers"),
        (unflattened, "one dim"),
        (in_place, "belong to the caller"),
        (view_of_the_first, "The caller frees its tensors"),
        (only_the_first, "gather returned 1"),
        (as_one, "a list with one tensor for each"),
        (lambda worker, tensors: tensors[0], "Return two things"),
        (lambda worker, tensors: (tensors[0], None), "Return two things"),
    ],
)
def test_each_mistake_is_told(mistake, hint):
    told(check.shard_flat(mistake), hint)


def test_a_gather_that_remembers():
    """It keeps plain numbers, so no tensor is held."""

    def solve(worker, tensors):
        shard, gather = week06.shard_flat(worker, tensors)
        kept = [tensor.tolist() for tensor in tensors]
        return shard, lambda shard: (
            gather(shard),
            [torch.tensor(row, dtype=torch.float64) for row in kept],
        )[1]

    told(check.shard_flat(solve), "changes it between two calls")


def test_a_shard_that_is_the_caller_s_tensor(monkeypatch):
    monkeypatch.setattr("helpers.check.week06.flat.CASES", [(1, [(4,)])])
    told(check.shard_flat(of_the_caller), "The caller frees its tensors")


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: numbers([(2, 3)]))
    assert drawn_anew(lambda: row([(2, 3)], 2))
