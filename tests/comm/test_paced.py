"""A paced link: real sums and gathers, and no sooner than planned."""

import time

import pytest
import torch

from helpers.comm.paced import PacedTransport
from helpers.runtime.launch import launch


def calls(worker, alpha, bandwidth):
    transport = PacedTransport(alpha=alpha, bytes_per_second=bandwidth)
    total = torch.full((100,), worker.rank + 1.0)
    largest = torch.full((10,), float(worker.rank))
    every, own = torch.empty(2, 5), torch.full((5,), float(worker.rank))
    part, parts = torch.empty(5), torch.arange(10.0).view(2, 5)
    began = time.perf_counter()
    works = [
        transport.all_reduce(total),
        transport.maximum(largest),
        transport.all_gather(every, own),
        transport.reduce_scatter(part, parts),
    ]
    for work in works:
        work.wait()
    return {
        "seconds": time.perf_counter() - began,
        "busy": transport.busy,
        "results": (total[0].item(), largest[0].item(), every[:, 0].tolist(), part.tolist()),
        "own": (2 * torch.arange(10.0).view(2, 5)[worker.rank]).tolist(),
    }


@pytest.mark.alone
def test_calls_follow_each_other_on_the_link():
    """400 + 40 + 20 + 20 bytes sent by each of 2 ranks, at 4,800 bytes a second, and 4 alphas."""
    for run in launch(calls, 2, device="cpu", alpha=0.05, bandwidth=4800):
        assert run["busy"] == pytest.approx(4 * 0.05 + 480 / 4800)
        assert run["busy"] <= run["seconds"] < run["busy"] + 0.5
        total, largest, every, part = run["results"]
        assert (total, largest, every, part) == (3.0, 1.0, [0.0, 1.0], run["own"])


def test_a_link_without_limits_waits_for_the_messages_alone():
    for run in launch(calls, 2, device="cpu", alpha=0.0, bandwidth=float("inf")):
        assert run["busy"] == 0
        assert run["results"][0] == 3.0
