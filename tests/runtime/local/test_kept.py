"""Ranks of a failed call, kept: stopped, asked, dropped; `test_debug` has a person at a prompt."""

import gc
import os
import signal
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.local import kept


def state(pid: int) -> str:
    """The process's state; "gone" once it has ended."""
    try:
        found = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "gone"
    return "gone" if found == psutil.STATUS_ZOMBIE else found


def until(pids, wanted) -> bool:
    end = time.monotonic() + 20
    while [state(pid) for pid in pids] != [wanted] * len(pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def failed(monkeypatch):
    """Two ranks of a call that failed at a prompt: the error, and the ranks' pids."""

    def fails(worker):
        if worker.rank == 1:
            secret = 42
            raise ValueError(f"no good: {secret}")
        time.sleep(1000)

    monkeypatch.setattr(kept, "interactive", lambda: True)
    with Cluster(2) as cluster:
        pids = list(cluster.run(lambda worker: os.getpid()))
        with pytest.raises(WorkerError) as caught:
            cluster.run(fails)
    yield caught.value, pids
    if caught.value.kept:
        caught.value.kept.drop(20)


def test_they_are_stopped_and_each_answers_while_it_is_asked(failed):
    error, pids = failed
    assert error.kept.first == 1
    assert until(pids, "stopped")
    assert error.kept.ask(1, "p secret") == "42\n"
    assert until(pids, "stopped")
    error.kept.processes.ranks[1].line.send("look")  # of a call that ended before the answer came
    assert error.kept.ask(1, "p secret + 1") == "43\n"
    assert until(pids, "stopped")


def test_a_fork_of_the_notebook_does_not_end_them(failed):
    error, pids = failed
    if (child := os.fork()) == 0:
        kept.kill(error.kept.processes, error.kept.pid, 0.0)
        os._exit(0)
    os.waitpid(child, 0)
    assert error.kept.ask(1, "p secret") == "42\n"
    kept.drop(20)
    assert until(pids, "gone")
    with pytest.raises(kept.Gone, match="Rank 1 has ended"):
        error.kept.ask(1, "p secret")


@pytest.mark.parametrize("asks", [0, 1])
def test_they_end_after_a_while(failed, monkeypatch, asks):
    error, pids = failed
    monkeypatch.setattr(kept, "KEEP_SECONDS", 0.3)
    processes = error.kept.processes
    if asks:
        error.kept.ask(1, "p secret")
    else:
        error.kept.end.detach()
        error.kept = kept.Kept(processes, 1)
    assert until(pids, "gone")


@pytest.mark.parametrize(
    ("kind", "rank", "first"),
    [
        ("exception", 2, 2),
        ("hang", None, 1),
        ("hang", 0, 0),
        ("died", 2, None),
        ("server", 0, None),
    ],
)
def test_which_failures_leave_ranks_to_enter(monkeypatch, kind, rank, first):
    monkeypatch.setattr(kept, "interactive", lambda: True)
    monkeypatch.setattr(kept, "_latest", None)
    monkeypatch.setattr(kept, "Kept", Entered)
    error = WorkerError("x", kind=kind, rank=rank)
    error.first = 1
    assert kept.keep(None, error) == (first is not None)
    assert getattr(error.kept, "first", None) == first


class Entered:
    def __init__(self, processes, first):
        self.first = first


class Noted:
    """Ranks of which one has ended; what they are told is noted."""

    def __init__(self):
        self.done = []
        self.ranks = [
            SimpleNamespace(rank=rank, status=3 if rank == 1 else None) for rank in range(3)
        ]

    def signal(self, ranks, number):
        self.done.append((ranks, number))

    def tell(self, **message):
        self.done.append(message)

    def kill(self, wait):
        self.done.append(("killed", wait))


def test_they_end_with_the_error_and_only_once():
    ranks = Noted()
    one = kept.Kept(ranks, 2)
    stopped = [([0, 2], signal.SIGSTOP), {"release": 300.0}]
    assert (ranks.done, one.size, one.live) == (stopped, 3, [0, 2])
    del one
    gc.collect()
    assert ranks.done == [*stopped, ("killed", 0.0)]
    one = kept.Kept(ranks, 2)
    one.drop(1.5)
    one.drop()
    del one
    gc.collect()
    assert ranks.done[3:] == [*stopped, ("killed", 1.5)]


class Line:
    """A rank that gives each of these answers in turn, or fails so."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def send(self, *message):
        self.asked.append(message)

    def receive(self):
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return (answer,), None


@pytest.mark.parametrize("error", [EOFError(), BrokenPipeError(), KeyboardInterrupt()])
def test_a_rank_is_stopped_again_however_the_question_ends(monkeypatch, error):
    """An interrupt ends the ranks: the next command would get the answer to this one."""
    monkeypatch.setattr(kept, "readable", lambda ranks: False)
    ranks = Noted()
    one = kept.Kept(ranks, 2)
    line = ranks.ranks[2].line = Line({"a look": 1}, "42\n", error)
    again = [{"release": 300.0}, ([2], signal.SIGCONT), ([2], signal.SIGSTOP)]
    assert one.ask(2, "p x") == "42\n"
    assert ranks.done[2:] == again
    interrupted = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt if interrupted else kept.Gone):
        one.ask(2, "p y")
    again[2:2] = [("killed", 0.0)] * interrupted
    assert ranks.done[5:] == again
    assert line.asked == [("debug", "p x"), ("debug", "p y")]
    with pytest.raises(kept.Gone, match="Rank 1 has ended"):
        one.ask(1, "p x")


def test_ranks_of_a_server_that_is_gone_are_gone(monkeypatch):
    ranks = Noted()
    one = kept.Kept(ranks, 2)
    news = [True, True, False]
    monkeypatch.setattr(kept, "readable", lambda given: given is ranks and news.pop(0))
    ranks.notices = lambda: setattr(ranks.ranks[2], "status", 1)
    assert one.alive(0)
    assert news == []  # all the news is read first
    news += [False]
    assert not one.alive(2)
    news += [True]

    def lost():
        raise WorkerError("x", kind="server")

    ranks.notices = lost
    assert not one.alive(0)
    ranks.ranks = []  # killed, and closed
    assert not one.alive(0)


def test_the_next_call_ends_the_ranks_of_the_last_error(monkeypatch):
    monkeypatch.setattr(kept, "interactive", lambda: True)
    monkeypatch.setattr(kept, "_latest", None)
    kept.drop(2.5)
    ranks, error = Noted(), WorkerError("x", kind="hang", rank=2)
    assert kept.keep(ranks, error)
    kept.drop(2.5)
    assert ranks.done[-1] == ("killed", 2.5)
    del error
    gc.collect()
    kept.drop(2.5)
    assert ranks.done.count(("killed", 2.5)) == 1


def test_nobody_debugs_a_script_or_a_thread_or_another_error(monkeypatch):
    monkeypatch.setattr(kept, "Kept", Entered)
    monkeypatch.setattr(kept, "_latest", None)
    error = WorkerError("x", kind="exception", rank=1)
    for here in (False, True):
        monkeypatch.setattr(kept, "interactive", lambda here=here: here)
        assert kept.keep(None, error) == here
    assert not kept.keep(None, KeyboardInterrupt())
    found = []
    thread = threading.Thread(target=lambda: found.append(kept.keep(None, error)))
    thread.start()
    thread.join()
    assert found == [False]
