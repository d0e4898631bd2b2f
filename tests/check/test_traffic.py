"""Steps are counted by who waits for whom; a traceback keeps the student's lines."""

import contextlib
import importlib
import os
import sys

import pytest
import torch
import torch.distributed as dist

from helpers import launch
from helpers.check import week10
from helpers.check.ranks import observed
from helpers.check.traffic import Call, bytes_sent, explain, steps, unequal
from helpers.check.verdict import NotRight, Verdict
from helpers.check.week01 import collectives
from helpers.runtime.cluster import Cluster
from tests.check.conftest import close_if_open

pytestmark = pytest.mark.timeout(100)  # a count without an end is a mistake, too


def send(peer):
    return Call("send", peer, 8)


def recv(peer):
    return Call("recv", peer, 8)


@pytest.mark.parametrize(
    ("calls", "count"),
    [
        # a flat broadcast and a chain: a step for each rank; a tree; a leaf that is told late
        ([[send(1), send(2), send(3)], [recv(0)], [recv(0)], [recv(0)]], 3),
        ([[send(1)], [recv(0), send(2)], [recv(1), send(3)], [recv(2)]], 3),
        ([[send(1), send(2)], [recv(0), send(3)], [recv(0)], [recv(1)]], 2),
        ([[send(2), send(1)], [recv(0), send(3)], [recv(0)], [recv(1)]], 3),
        # receives begun before the sends do not stop the count
        ([[recv(1), send(1)], [recv(0), send(0)]], 2),
        # a message that came long ago takes no one back
        ([[send(1)], [send(2), send(2), recv(0), send(2)], [recv(1)] * 3], 3),
        ([[], []], 0),
        # from any source
        ([[send(1)], [recv(None)]], 1),
        ([[send(2)], [send(3), send(2)], [recv(None), send(3), recv(None)], [recv(1), recv(2)]], 2),
        # a message of another rank is not the one that is awaited
        (
            [[send(2)], [send(3), send(3), send(2)], [recv(1), send(4), recv(0)]]
            + [[recv(1), recv(1)], [recv(2)]],
            4,
        ),
    ],
)
def test_steps_are_counted_by_who_waits_for_whom(calls, count):
    assert steps(calls) == count


def swap(worker):
    before = "torch._dynamo" in sys.modules  # a rank may have imported it for another test

    def solve(mine):
        other, theirs = 1 - worker.rank, torch.empty(2)
        operations = [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        return theirs

    answer, seen = observed(solve, torch.full((2,), float(worker.rank)))
    # by name, because a function that mentions the module cannot travel
    functional = importlib.import_module("torch.ops")._c10d_functional
    everyone = dist.group.WORLD.group_name

    def solve_otherwise():
        torch.ones(3).sum()
        dist.all_reduce(torch.ones(3))
        functional.wait_tensor(functional.all_reduce(torch.ones(2).half(), "sum", everyone))

    _, others = observed(solve_otherwise)
    del others["messages"]
    imported = ("torch._dynamo" in sys.modules) != before  # that takes a second on each rank
    return {"answer": answer.tolist(), **seen, "others": others, "imported": imported}


def test_a_batch_of_messages_is_seen():
    runs = launch(swap, workers=2, device="cpu")
    assert runs.column("answer") == [[1.0, 1.0], [0.0, 0.0]]
    assert set(runs[0]["calls"]) == {Call("send", 1, 8), Call("recv", 1, 8)}
    assert runs.column("unwaited") == [0, 0]
    assert runs.column("imported") == [False, False]
    calls = [Call("all_reduce", None, 12), Call("all_reduce", None, 4)]
    assert runs.column("others") == 2 * [{"calls": calls, "unwaited": 0, "late": []}]


def begun(worker):
    """Two messages that nobody waits for; then one from this rank itself, and one to nobody."""
    other, requests, refused = 1 - worker.rank, [], []

    def solve(mine):
        theirs = torch.empty_like(mine)
        requests.extend([dist.isend(mine, other), dist.irecv(theirs, other)])
        for call, peer in ((dist.recv, worker.rank), (dist.send, 2), (dist.isend, -1)):
            try:
                call(mine, peer)
            except ValueError as error:
                refused.append(str(error))

    _, seen = observed(solve, torch.ones(2))
    for request in requests:
        request.wait()
    return seen["unwaited"], refused


def test_each_message_under_way_counts_and_some_are_refused():
    for rank, (unwaited, refused) in enumerate(launch(begun, 2, device="cpu", timeout=30)):
        assert unwaited == 2
        assert refused == [
            f"no rank can send to itself, or receive from itself: rank {rank} wants to",
            "there is no rank 2: of 2, the last is 1",
            "there is no rank -1: of 2, the last is 1",
        ]


def leave_open(worker, wait):
    def solve(mine):
        message = dist.isend if worker.rank else dist.irecv
        request = message(mine, 1 - worker.rank)
        if wait:
            request.wait()

    observed(solve, torch.ones(2))
    return os.getpid()


@pytest.mark.parametrize("wait", [True, False])
def test_ranks_with_a_message_under_way_are_not_shared(wait):
    """Those that wrong answers share: the next answer would get the message."""
    with Cluster(2, device="cpu") as cluster:
        first = cluster.run(leave_open, wait=wait)
        close_if_open(cluster)
        assert (list(cluster.run(leave_open, wait=True)) == list(first)) == wait


def test_only_the_student_s_frames_are_kept():
    finding = """with 2 ranks: rank 0 raised ZeroDivisionError: division by zero
Traceback (most recent call last):
  File "/here/helpers/check/week01_ring.py", line 9, in run_ring_all_reduce
    answer, seen = observed(solve, worker, tensor)
  Cell In[3], line 4, in ring_all_reduce
    1 / 0
    ~~^~~
ZeroDivisionError: division by zero"""
    kept = explain(Verdict("ring_all_reduce", "wrong", finding)).finding
    assert "week01_ring" not in kept
    assert "observed" not in kept
    assert "Cell In[3], line 4" in kept
    assert kept.endswith("division by zero")


SUM = Call("all_reduce", None, 64)


def test_a_message_larger_or_smaller_than_its_room_is_named():
    def one_way(*sent, room, source=0):
        messages = [[Call("send", 1, size) for size in sent]]
        return list(unequal([*messages, [Call("recv", source, size) for size in room]]))

    assert one_way(8, 16, room=(8, 16)) == []
    assert one_way(8, 16, room=(8, 24)) == [(0, 1, 16, 24)]
    assert one_way(8, 16, room=(4, 16)) == [(0, 1, 8, 4)]
    assert one_way(8, room=(4,), source=None) == []  # from whoever comes first
    round_trip = [
        [Call("send", 2, 8), Call("recv", 1, 4), Call("send", 1, 16)],
        [Call("recv", 0, 16), Call("send", 0, 4), SUM],
        [SUM, Call("recv", 0, 8), Call("recv", 1, 2)],
    ]
    assert list(unequal(round_trip)) == []
    round_trip[1].append(Call("send", 2, 3))
    assert list(unequal(round_trip)) == [(1, 2, 3, 2)]
    calls = [Call("recv", None, 8), Call("recv", 0, 16)]
    assert list(unequal([[Call("send", 1, 8), Call("send", 1, 16)], calls])) == []


def test_only_what_is_sent_counts_as_bytes():
    assert bytes_sent([send(1), recv(1), send(2), SUM]) == 16


def test_fewer_bytes_than_the_task_needs_are_too_few():
    nobody = {"calls": [[], []]}
    assert collectives.count_ring(nobody, 5)["bytes too few"] == 2 * 5 * 8
    empty = {"calls": [[Call("send", 1, 0), Call("send", 2, 0)], [], []]}
    counted = collectives.count_messages(empty, 0)
    assert (counted["sent messages"], counted["bytes too few"]) == (2, 2 * 3 * 4)
    half = {"calls": [[Call("send", 1, 8)], [Call("send", 0, 4)]]}
    assert collectives.count_detours(half, 2) == {"bytes too many": 0, "bytes too few": 4}
    for parts, enough in (([1, 2], False), ([1, 0], True), ([0, 2], True)):
        with contextlib.nullcontext() if enough else pytest.raises(NotRight, match="rank 0 sent 0"):
            week10.judge_sizes(nobody, None, 2, {"parts": parts})
