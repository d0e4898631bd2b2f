"""The benchmark of survivors: a round of ours, and its table."""

import torch.distributed as dist

from helpers.runtime.launch import launch
from tests.bench import survivors


def one_round(worker):
    dist.destroy_process_group()
    return survivors.round_of(survivors.ours)


def test_its_rounds_and_its_table():
    [found] = launch(one_round, 1, device="cpu")
    assert 0 < found["step"] < found["recovery"]
    assert found["again"] <= 1
    rows = [
        {"system": name, "recovery": seconds, "step": 0.01, "again": again}
        for name, seconds, again in (("a", 0.3, 1), ("b", 0.5, 0), ("a", 0.1, 0), ("a", 0.2, 1))
    ]
    _, a, b = survivors.report(rows).table
    assert a == ["a", "200 ms (100–300)", "10 ms", "1"]
    assert b[:2] == ["b", "500 ms (500–500)"]
