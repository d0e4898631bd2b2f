"""Steps are counted by who waits for whom; a traceback keeps the student's lines."""

import os

import pytest
import torch
import torch.distributed as dist

from helpers import launch
from helpers.check.oracle import started_too_slowly
from helpers.check.traffic import Call, explain, observed, steps
from helpers.check.verdict import Verdict
from helpers.runtime.cluster import Cluster
from tests.check.conftest import close_if_open


def send(peer):
    return Call("send", peer, 8)


def recv(peer):
    return Call("recv", peer, 8)


def test_a_flat_broadcast_takes_a_step_for_each_rank():
    assert steps([[send(1), send(2), send(3)], [recv(0)], [recv(0)], [recv(0)]]) == 3


def test_a_chain_takes_as_many():
    assert steps([[send(1)], [recv(0), send(2)], [recv(1), send(3)], [recv(2)]]) == 3


def test_a_tree_takes_two():
    assert steps([[send(1), send(2)], [recv(0), send(3)], [recv(0)], [recv(1)]]) == 2


def test_a_leaf_that_is_told_late_counts():
    assert steps([[send(2), send(1)], [recv(0), send(3)], [recv(0)], [recv(1)]]) == 3


def test_receives_begun_before_the_sends_do_not_stop_the_count():
    assert steps([[recv(1), send(1)], [recv(0), send(0)]]) == 2


def test_no_messages_no_steps():
    assert steps([[], []]) == 0


def test_from_any_source():
    assert steps([[send(1)], [recv(None)]]) == 1


def swap(worker):
    def solve(mine):
        other, theirs = 1 - worker.rank, torch.empty(2)
        operations = [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        return theirs

    answer, seen = observed(solve, torch.full((2,), float(worker.rank)))
    return {"answer": answer.tolist(), **seen}


def test_a_batch_of_messages_is_seen():
    runs = launch(swap, workers=2, device="cpu")
    assert runs.column("answer") == [[1.0, 1.0], [0.0, 0.0]]
    assert set(runs[0]["calls"]) == {Call("send", 1, 8), Call("recv", 1, 8)}
    assert runs.column("unwaited") == [0, 0]


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


def test_ranks_that_had_not_begun_are_no_deadlock():
    first = "with 2 ranks: no sign of life from any rank for 10 s: a hang\n"
    slow = "rank 0 was not answering\nrank 1 was not answering"
    assert started_too_slowly(first + slow)
    assert not started_too_slowly(first + slow.replace("1 was not answering", "1 was waiting"))
    assert not started_too_slowly("")
