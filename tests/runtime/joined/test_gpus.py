"""Which GPU is whose, decided from what all ranks say. No GPU is needed: counts are made up."""

import json
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.joined import gpus
from helpers.runtime.joined.gpus import GPUs


class Given(dist.HashStore):
    """What the other ranks have said is there already."""

    def __init__(self, everyone: list[dict]):
        super().__init__()
        for rank, said in enumerate(everyone):
            self.set(f"gpus/{rank}", json.dumps(said))

    def multi_get(self, keys):
        return [self.get(key) for key in keys]


def choose(monkeypatch, everyone, local_ranks, rank):
    said = everyone[rank]
    properties = SimpleNamespace(uuid=said["only"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: said["count"])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(gpus.socket, "gethostname", lambda: said["host"])
    where = SimpleNamespace(
        rank=rank, world_size=len(everyone), local_rank=local_ranks[rank], local_size=said["size"]
    )
    return GPUs(where, Given(everyone))


def said(host, count, size=None, only=None):
    return {"host": host, "size": size, "count": count, "only": only}


@pytest.mark.parametrize(
    ("everyone", "local_ranks", "device", "indices", "too_few"),
    [
        # a GPU for each local rank, on two machines
        ([said("a", 2, 2)] * 2 + [said("b", 2, 2)] * 2, [0, 1, 0, 1], "cuda", [0, 1, 0, 1], ""),
        # Slurm does not say how many ranks a machine has: counted by name
        ([said("a", 2)] * 2 + [said("b", 2)], [0, 1, 0], "cuda", [0, 1, 0], ""),
        # one for each task, each its own
        ([said("a", 1, 2, "x"), said("a", 1, 2, "y")], [0, 1], "cuda", [0, 0], ""),
        # the same one shown to both
        ([said("a", 1, 2, "x")] * 2, [0, 1], "cpu", None, "2 ranks and 1 GPU on a: running on"),
        # enough here, too few there: no rank uses one
        (
            [said("a", 2, 2)] * 2 + [said("b", 1, 2, "x")] * 2,
            [0, 1, 0, 1],
            "cpu",
            None,
            "1 GPU on b",
        ),
        ([said("a", 0, 2)] * 2, [0, 1], "cpu", None, ""),
        # a machine without any is named, as one that has too few
        (
            [said("a", 1, 1, "x"), said("b", 0, 1)],
            [0, 0],
            "cpu",
            None,
            "1 rank and 0 GPUs on b: running on the CPU, with gloo",
        ),
    ],
)
def test_all_ranks_come_to_one_answer(monkeypatch, everyone, local_ranks, device, indices, too_few):
    found = [choose(monkeypatch, everyone, local_ranks, rank) for rank in range(len(everyone))]
    assert {gpu.device for gpu in found} == {device}
    assert {gpu.backend for gpu in found} == {"gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"}
    if indices:
        assert [gpu.index for gpu in found] == indices
    assert all(too_few in gpu.too_few for gpu in found)
    assert bool(found[0].too_few) == bool(too_few)
    hosts = [rank["host"] for rank in everyone]
    assert [gpu.local_size for gpu in found] == [hosts.count(host) for host in hosts]
