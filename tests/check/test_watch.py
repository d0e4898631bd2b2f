"""A watched step: messages, waits and marks in order, and no sum before its wait."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.check.watch import Request, Watch
from helpers.runtime.launch import launch


def step(worker, waits):
    gradient = torch.full((3,), worker.rank + 1.0)
    before = "torch._dynamo" in sys.modules  # a rank may have imported it for another test
    with Watch() as watch:
        watch.mark("gradient", "weight")
        try:
            dist.all_reduce(torch.zeros(3, 2)[:, 0])
        except ValueError as error:
            refused = str(error)
        work = dist.all_reduce(gradient, async_op=True)
        early = gradient.tolist()
        if waits == "polls":
            while not work.is_completed():
                pass
        elif waits == "asks":
            work.get_future().wait()
        elif waits:
            work.wait()
        dist.broadcast(torch.zeros(2), 0)
        watch.mark("update")
        largest = [torch.full((2, 2), float(worker.rank))]
        handle = dist.all_reduce(largest[0].T, op=dist.ReduceOp.MAX, async_op=True)
        watch.mark("update")
        # by name, because a function that mentions the module cannot travel
        functional = importlib.import_module("torch.ops")._c10d_functional
        half = functional.all_reduce(torch.ones(3).half(), "sum", dist.group.WORLD.group_name)
        functional.wait_tensor(half)
    result = {
        "early": early,
        "late": gradient.tolist(),
        "unwaited": watch.unwaited() - 1,
        "events": [(event.kind, event.name, event.nbytes) for event in watch.events],
        "since": [event.kind for event in watch.since("gradient")],
        "updates": [event.kind for event in watch.since("update")],
        "never": watch.since("no such mark"),
        "imported": ("torch._dynamo" in sys.modules) != before,  # a second on each rank
        "payloads": [payload.tolist() for payload in watch.payloads],
    }
    handle.wait()
    if waits:
        gradient.mul_(2)
        work.wait()  # the sum has arrived: it does not arrive again
    result |= {"refused": refused, "largest": largest[0].tolist(), "again": gradient.tolist()}
    work.wait()  # so that no rank ends with a message under way
    return result


def test_a_sum_reaches_its_buffer_with_the_wait():
    for rank, run in enumerate(launch(step, 2, device="cpu", waits=True)):
        assert "contiguous" in run["refused"]
        assert run["early"] == 3 * [rank + 1.0] == run["payloads"][0]
        assert run["late"] == 3 * [3.0]
        assert run["unwaited"] == 0
        assert run["events"] == [
            ("gradient", "weight", 0),
            ("message", "all_reduce", 12),
            ("wait", "", 0),
            ("message", "broadcast", 8),
            ("update", "", 0),
            ("message", "all_reduce", 16),
            ("update", "", 0),
            ("message", "all_reduce", 6),
        ]
        assert run["since"] == [
            "message", "wait", "message", "update", "message", "update", "message",
        ]  # fmt: skip
        assert run["updates"] == ["message", "update", "message"]
        assert run["never"] == []
        assert not run["imported"]
        assert run["payloads"][1] == 4 * [rank]
        assert run["largest"] == [[1.0, 1.0], [1.0, 1.0]]
        assert run["again"] == 3 * [6.0]


@pytest.mark.parametrize("how", ["polls", "asks"])
def test_a_sum_that_is_complete_has_reached_its_buffer(how):
    for run in launch(step, 2, device="cpu", waits=how):
        assert run["late"] == 3 * [3.0]
        assert run["unwaited"] == 0


def test_a_sum_may_land_in_a_parameter():
    parameter, inner = torch.nn.Parameter(torch.zeros(2)), SimpleNamespace(wait=lambda: None)
    request = Request(inner, [torch.ones(2)], [parameter], [])
    assert not request.over
    request.wait()
    assert request.over
    assert parameter.tolist() == [1.0, 1.0]
    assert parameter.requires_grad


def test_without_a_wait_the_old_numbers_stay():
    for rank, run in enumerate(launch(step, 2, device="cpu", waits=False)):
        assert run["late"] == 3 * [rank + 1.0]
        assert run["unwaited"] == 1
        assert "wait" not in run["since"]
        assert run["largest"] == [[1.0, 1.0], [1.0, 1.0]]
