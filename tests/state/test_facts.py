"""Ranks exchange small facts."""

import torch
import torch.distributed as dist

from helpers.comm.mesh import Layout, make_mesh
from helpers.state import facts


def test_every_rank_hears_every_other(cluster):
    def hear(worker):
        fact = {"rank": worker.rank, "text": "ä" * worker.rank, "none": None, "pair": (1, 2.5)}
        return facts.exchange(fact)

    for heard in cluster.run(hear):
        assert [fact["rank"] for fact in heard] == [0, 1, 2, 3]
        assert [fact["text"] for fact in heard] == ["", "ä", "ää", "äää"]
        assert heard[2]["pair"] == (1, 2.5)


def test_within_a_group(cluster):
    def hear(worker):
        mesh = make_mesh(Layout(dp=2, tp=2))
        return facts.exchange(worker.rank, mesh.group("dp"))

    assert list(cluster.run(hear)) == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_large_and_unequal(cluster):
    def hear(worker):
        return [len(text) for text in facts.exchange("x" * (worker.rank * 100_000))]

    assert list(cluster.run(hear)) == [[0, 100_000, 200_000, 300_000]] * 4


def test_where_a_group_carries(cluster, monkeypatch):
    def carried(worker):
        return str(facts.carrier(None, "cpu"))

    assert set(cluster.run(carried)) == {"cpu"}
    cuda = torch.device("cuda", 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for config, here, there in [
        ("cpu:gloo,cuda:nccl", cuda, cuda),
        ("cpu:gloo", cuda, torch.device("cpu")),
        ("cuda:nccl", cuda, cuda),
        ("cuda:nccl", torch.device("cpu"), torch.device("cuda", 1)),
        ("cpu:gloo,cuda:nccl", torch.device("cpu"), torch.device("cpu")),
    ]:
        monkeypatch.setattr(dist, "get_backend_config", lambda group, said=config: said)
        assert facts.carrier(None, here) == there
