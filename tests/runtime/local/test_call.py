"""One call, from the first sign of life to the last: what is heard, and whom it blames."""

import gc
import os
import socket
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.failure import Failure, WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local import call
from helpers.runtime.local.channel import Channel
from helpers.runtime.local.processes import RankProcess
from helpers.runtime.payload import Parcel, pack
from helpers.runtime.private import anonymous_file


@pytest.fixture
def alone():
    """A call on two ranks of which this test is the other end; what it signals is noted."""
    ranks = [RankProcess(rank) for rank in range(2)]
    for process in ranks:
        process.listen()
    server, there = socket.socketpair()
    signalled = []
    processes = SimpleNamespace(
        ranks=ranks,
        server=SimpleNamespace(remember="for its end"),
        fileno=server.fileno,
        notices=lambda: ranks[:1],
        signal=lambda ranks, number: signalled.append(ranks),
    )
    draws = iter(range(100))  # a call that goes on longer fails
    screen = SimpleNamespace(draw=lambda: next(draws), finish=lambda: None, point=lambda row: None)
    one = call.Call(processes, screen)
    one.signalled = signalled
    yield one
    one.close()
    for process in ranks:
        process.given_away()
        process.close()
    server.close()
    there.close()


def fails(rank, message="so"):
    return Failure(rank, time.monotonic(), kind="ValueError", message=message)


def test_the_last_words_of_a_rank_that_has_ended_are_heard_first(alone):
    """The news of its end came before they were read."""
    rank = Channel(alone.processes.ranks[0]._channel)
    rank.send("log", 0.5, {"loss": 1.0})
    report = {"kind": "ValueError", "message": "mine", "when": 0.0}
    rank.send("error", report)
    alone.processes.ranks[0].status = 1
    alone.hear_server()
    assert alone.rows.kept == [{"rank": 0, "loss": 1.0, "seconds": 0.5}]
    assert alone.failures == {0: Failure(rank=0, **report)}


def test_prints_and_messages_are_signs_of_life(alone):
    process = alone.processes.ranks[1]
    for speak in (
        lambda: os.write(process._stdout, b"x\n"),
        lambda: Channel(process._channel).send("track", "steps", 1, 2),
    ):
        alone.screen.progress = lambda *_: None
        alone.last_sign, alone.looks.due = 0.0, 0.0
        speak()
        alone.hear(5)
        assert alone.last_sign > 0
        assert alone.looks.due > 0


def test_the_file_of_a_large_result_is_closed_also_if_it_cannot_be_read(alone):
    parcels = pack(torch.zeros(100_000)), Parcel(None, [8, 8], anonymous_file())
    for rank, parcel in enumerate(parcels):
        alone.take_result(rank, parcel)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(parcel.fd)
    assert alone.results.keys() == {0}
    assert alone.failures[1].verb == "returned a value that the notebook cannot rebuild:"


def test_what_was_printed_before_the_last_answer_is_shown(alone, capsys):
    alone.results = {0: None, 1: None}
    os.write(alone.processes.ranks[1]._stdout, b"last words\n")
    alone.wait(None)
    assert "[rank 1] last words" in capsys.readouterr().out


def test_after_a_failure_the_call_ends_though_another_rank_goes_on(alone, monkeypatch):
    monkeypatch.setattr(call, "STACK_SECONDS", 0.01)
    alone.failures = {1: fails(1)}
    with pytest.raises(WorkerError, match="rank 1 raised ValueError: so"):
        alone.wait(None)
    assert alone.signalled == [[0]]


def test_only_ranks_that_still_run_are_asked_for_their_stacks(alone, monkeypatch):
    monkeypatch.setattr(call, "STACK_SECONDS", 0.0)
    alone.results = {0: "done"}
    alone.ask_for_stacks()
    alone.failures = {1: fails(1)}
    alone.ask_for_stacks()
    alone.results, alone.processes.ranks[0].status = {}, 0
    alone.ask_for_stacks()
    assert alone.signalled == [[1], [], []]


@pytest.mark.parametrize(
    ("joined", "status", "headline"),
    [
        (False, 1, "rank 2 could not start: its process ended with exit code 1"),
        (True, 1, "rank 2 ended with exit code 1 before it returned"),
        (False, -9, "rank 2 was killed by SIGKILL"),
        (False, 70, "rank 2 could not start: no memory"),
    ],
)
def test_an_end_before_joining_is_told_from_one_after_it(joined, status, headline):
    process = SimpleNamespace(rank=2, status=status, problem="no memory", joined=joined)
    assert call.Call.end_of(None, process).headline().startswith(headline)


def test_all_that_ranks_say_is_heard(capsys):
    def talk(worker):
        for step in range(3):
            worker.log(step=step, own=10 * worker.rank + step)
        print("out of", worker.rank)
        print("wrong in", worker.rank, file=sys.stderr)
        for _ in worker.track(range(4), label="work"):
            pass
        return worker.rank

    runs = launch(talk, workers=2)
    assert list(runs) == [0, 1]
    for rank in range(2):
        rows = [row for row in runs.records if row["rank"] == rank]
        assert [(row["step"], row["own"]) for row in rows] == [(n, 10 * rank + n) for n in range(3)]
        assert 0 <= rows[0]["seconds"] <= rows[-1]["seconds"] <= runs.seconds
    out, err = capsys.readouterr()
    assert "work rank 0: 4/4, work rank 1: 4/4" in out
    for rank in range(2):
        assert f"[rank {rank}] out of {rank}\n" in out
        assert f"[rank {rank}] wrong in {rank}\n" in err


def test_prints_come_as_they_are_printed(tmp_path):
    """The rank waits until the notebook has shown its first line."""
    seen, shown = [], tmp_path / "shown"

    class Watch:
        def write(self, text):
            seen.append(text)
            shown.touch()

        def flush(self):
            pass

    def f(worker):
        print("first")
        while not shown.exists():
            time.sleep(0.01)
        print("second")

    before, sys.stdout = sys.stdout, Watch()
    try:
        launch(f, workers=1, timeout=20)
    finally:
        sys.stdout = before
    assert seen[:2] == ["[rank 0] first\n", "[rank 0] second\n"]


def test_the_error_is_a_cause_that_can_be_caught():
    def f(worker):
        {}["missing"]

    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        launch(f, workers=3)
    assert time.monotonic() - began < 20
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.kind == "exception"
    assert '{}["missing"]' in caught.value.traceback


def test_a_death_while_the_others_wait_is_told_by_its_rank():
    def f(worker):
        if worker.rank == 2:
            os.kill(os.getpid(), 9)
        dist.barrier()

    for _ in range(5):  # the neighbours' complaints race with the news of the death
        with pytest.raises(WorkerError) as caught:
            launch(f, workers=3)
        assert caught.value.rank == 2
        assert caught.value.kind == "died"


def test_a_complaint_about_another_rank_waits_for_that_rank_s_own_words():
    def fail(worker):
        if worker.rank == 0:
            raise RuntimeError("Connection closed by peer")
        time.sleep(0.3)  # longer than after a likely cause
        raise ValueError("the cause")

    with pytest.raises(WorkerError, match="rank 1 raised ValueError: the cause") as caught:
        launch(fail, workers=2)
    assert caught.value.others == {0: "failing too: raised RuntimeError: Connection closed by peer"}


def test_once_all_have_ended_nothing_is_waited_for(monkeypatch):
    monkeypatch.setattr(call, "SETTLE_SECONDS", 60.0)

    def fail(worker):
        time.sleep(0.2 * (worker.rank == 1))
        if worker.rank < 2:
            raise ValueError("no")

    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        launch(fail, workers=3)
    assert time.monotonic() - began < 30
    assert caught.value.rank == 0
    assert caught.value.others == {2: "done"}
    assert "rank 1 failed the same way" in str(caught.value)


def test_those_that_still_run_are_asked_where():
    def fail(worker):
        if worker.rank == 0:
            dist.barrier()
        time.sleep(0.5)  # rank 0 is in its barrier by then
        raise ValueError("no")

    with pytest.raises(WorkerError, match="rank 1 raised ValueError") as caught:
        launch(fail, workers=2)
    assert caught.value.others[0].startswith("waiting in barrier, line ")


def rebuild(pid, data):
    if os.getpid() == pid:
        raise ImportError("no such thing here")
    return data


def test_a_result_that_cannot_be_rebuilt_is_told_and_leaves_no_descriptor():
    launch(lambda worker: None, workers=1)
    gc.collect()  # what other tests have left would be closed meanwhile
    before, here = len(os.listdir("/proc/self/fd")), os.getpid()

    def give(worker):
        class Foreign:
            def __reduce__(self):
                return rebuild, (here, torch.zeros(100_000))  # too large for a message

        return Foreign()

    with pytest.raises(WorkerError, match="cannot rebuild: ImportError: no such thing") as caught:
        launch(give, workers=1)
    assert caught.value.rank == 0
    assert len(os.listdir("/proc/self/fd")) <= before
