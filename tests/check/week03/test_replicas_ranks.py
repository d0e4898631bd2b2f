"""Shards and first states on ranks: each solution passes, each mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week03 import replicas
from notebooks.solutions import week03
from tests.check.asked import drawn_anew
from tests.check.told import told


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("name", ["shard", "broadcast_state"])
def test_the_solution_passes(name):
    verdict = getattr(check, name)(getattr(week03, name))
    assert verdict, verdict


# ----------------------------------------------------------------------------- shard


def everything(worker, batch):
    return batch


def the_same_shard(worker, batch):
    return batch.tensor_split(worker.world_size)[0]


def dropped_rows(worker, batch):
    size = len(batch) // worker.world_size
    return batch[worker.rank * size : (worker.rank + 1) * size]


def padded_rows(worker, batch):
    size = -(-len(batch) // worker.world_size)
    rows = [i % len(batch) for i in range(worker.rank * size, (worker.rank + 1) * size)]
    return batch[rows]


def strided(worker, batch):
    return batch[worker.rank :: worker.world_size]


def chunked(worker, batch):
    return batch.chunk(worker.world_size)[worker.rank]


def shuffled_anew(worker, batch):
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(worker.rank))
    return batch[order.tensor_split(worker.world_size)[worker.rank]]


def all_to_the_last(worker, batch):
    size = len(batch) // worker.world_size
    end = None if worker.rank == worker.world_size - 1 else (worker.rank + 1) * size
    return batch[worker.rank * size : end]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (everything, "whole batch"),
        (the_same_shard, "same rows"),
        (dropped_rows, "left over"),
        (shuffled_anew, "one and the same order"),
        (padded_rows, "more than once"),
        (strided, "rank order"),
        (chunked, "as many parts"),
        (all_to_the_last, "slowest rank"),
    ],
)
def test_shard(mistake, hint):
    told(check.shard(mistake), hint)


# ------------------------------------------------------------------- broadcast_state


def no_buffers(worker, model):
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)


def only_what_trains(worker, model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.broadcast(parameter.detach(), src=0)
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def averaged(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        total = tensor.detach().double()
        dist.all_reduce(total)
        tensor.detach().copy_(total / worker.world_size)


def from_the_last(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=worker.world_size - 1)


def into_copies(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach().clone(), src=0)


def new_tensors(worker, model):
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in list(held.items()):
                if tensor is not None:
                    copy = tensor.detach().clone()
                    dist.broadcast(copy, src=0)
                    again = torch.nn.Parameter(copy, tensor.requires_grad)
                    held[name] = again if held is module._parameters else copy


def through_float(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        message = tensor.detach().float()
        dist.broadcast(message, src=0)
        tensor.detach().copy_(message)


def each_its_own_source(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=worker.rank)


def by_state_dict(worker, model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (no_buffers, "no optimizer trains"),
        (only_what_trains, "do not train"),
        (averaged, "one rank sends"),
        (from_the_last, "last rank's"),
        (into_copies, "kept its own"),
        (new_tensors, "writes into a tensor"),
        (through_float, "keeps the dtype"),
        (by_state_dict, "persistent=False"),
    ],
)
def test_broadcast_state(mistake, hint):
    told(check.broadcast_state(mistake), hint)


def test_broadcast_state_that_hangs(monkeypatch):
    monkeypatch.setattr("helpers.check.oracle.TIMEOUT", 2.0)
    told(check.broadcast_state(each_its_own_source), "all name the same source")


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: replicas.global_batch(2))
    assert drawn_anew(lambda: replicas.first_numbers(torch.nn.Linear(2, 1), rank=0))
