"""The transport that sends nothing: on one of two ranks alone, each call returns at once."""

import pytest
import torch

from helpers.inference.ranks.silent import SilentTransport
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")


def calls(worker):
    transport = SilentTransport()
    if worker.rank == 0:
        return None  # it makes no call: any message would wait for it
    own, every = torch.tensor([1.0, 2.0]), torch.zeros(2, 2)
    transport.all_gather(every, own).wait()
    kept = torch.zeros(2)
    transport.reduce_scatter(kept, torch.tensor([[3.0, 4.0], [5.0, 6.0]])).wait()
    for call in (transport.all_reduce, transport.maximum):
        call(own).wait()
    return every.tolist(), kept.tolist(), own.tolist()


def test_no_call_waits_for_another_rank():
    every, kept, own = launch(calls, 2, device="cpu", timeout=20)[1]
    assert every == [[1, 2], [1, 2]]
    assert kept == [5, 6]
    assert own == [1, 2]
