"""Ranks, seen from the notebook: signalled, let go, killed; and no descriptor remains."""

import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import time
from types import SimpleNamespace

import psutil
import pytest

from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.local.channel import readable
from helpers.runtime.local.forkserver import processes as module
from helpers.runtime.local.forkserver.client import start_method
from helpers.runtime.local.forkserver.processes import Processes, RankProcess


def started() -> Processes:
    """Two ranks that have started, and wait for their setup."""
    processes = Processes(2, start_method())
    while not all(process.pid for process in processes.ranks):
        assert readable(processes, 60)
        processes.notices()
    return processes


@pytest.fixture
def processes():
    ranks = started()
    yield ranks
    ranks.close()


def gone(pids) -> bool:
    end = time.monotonic() + 30
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(map(psutil.pid_exists, pids))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_killed_ranks_are_gone_and_leave_no_descriptor():
    started().kill(20)  # from now on the server is there
    gc.collect()  # what other tests have left would be closed meanwhile
    before = descriptors()
    processes = started()
    pids = [process.pid for process in processes.ranks]
    assert all(map(psutil.pid_exists, pids))
    processes.kill(20)
    assert gone(pids)
    assert processes.ranks == []
    assert descriptors() <= before


@pytest.mark.timeout(100)
def test_waiting_ends_with_the_time_or_with_the_ranks(processes):
    began = time.monotonic()
    assert not processes.wait(0.2)
    assert 0.2 <= time.monotonic() - began < 4
    processes.signal([1], signal.SIGKILL)
    while processes.ranks[1].status is None:
        assert readable(processes, 60)
        ended = processes.notices()
    assert [process.rank for process in ended] == [1]
    assert [process.status for process in processes.ranks] == [None, -signal.SIGKILL]
    assert not processes.wait(0)
    processes.signal([0], signal.SIGKILL)
    assert processes.wait(60)


def test_notices_may_arrive_in_pieces_and_together():
    processes = Processes(0, start_method())
    for rank in range(3):
        processes.ranks.append(RankProcess(rank))
        processes.ranks[rank].given_away()
    processes.socket.close()
    processes.socket, server = socket.socketpair()
    with server:
        found = []
        for text in (
            b'{"rank": 1, "status": 3}\n{"rank": 2, "status": -9, "problem": "no"}\n{"ra',
            b'nk": 0, "sta',
            b'tus": 0}\n',
        ):
            server.sendall(text)
            found.append([process.rank for process in processes.notices()])
    assert found == [[1, 2], [], [0]]
    assert [process.status for process in processes.ranks] == [0, 3, -9]
    assert [process.problem for process in processes.ranks] == ["", "", "no"]
    processes.close()


def test_only_ranks_that_live_are_killed_without_the_server(by_hand, monkeypatch):
    """The number of a rank that has ended may be another process's by now."""
    killed = []

    def killpg(pid, number):
        killed.append((pid, number))
        raise ProcessLookupError if pid == 11 else PermissionError

    monkeypatch.setattr(os, "killpg", killpg)
    ranks = Processes(5, "fork")
    for rank, (pid, status) in enumerate([(11, None), (12, 0), (13, None), (14, -9), (None, None)]):
        ranks.ranks[rank].pid, ranks.ranks[rank].status = pid, status
    ranks.kill_directly()
    assert killed == [(11, signal.SIGKILL), (13, signal.SIGKILL)]
    ranks.close()


def test_a_server_that_has_started_a_rank_is_known_to_serve(by_hand):
    ranks = Processes(2, "fork")
    by_hand.sendall(b'{"rank": 1, "pid": 77}\n')
    assert (ranks.notices(), ranks.ranks[1].pid, ranks.begun()) == ([], 77, True)
    assert ranks.server.served
    by_hand.close()  # with orders that it has not read: the system calls that a reset
    with pytest.raises(WorkerError, match="lost"):
        ranks.notices()
    ranks.close()


def test_a_rank_that_never_leaves_is_killed(monkeypatch):
    def stays(worker):
        atexit.register(time.sleep, 1000)

    monkeypatch.setattr(module, "RELEASE_SECONDS", 0.2)
    with Cluster(1) as cluster:
        cluster.run(stays)
        cluster.processes.leave()
        assert cluster.processes.wait(30)
        assert [process.status for process in cluster.processes.ranks] == [-signal.SIGKILL]


def test_ranks_of_a_server_that_does_not_answer_are_killed_too(processes):
    server = psutil.Process(processes.ranks[0].pid).parent()
    pids = [process.pid for process in processes.ranks]
    end = time.monotonic() + 30
    while [os.getpgid(pid) for pid in pids] != pids:
        assert time.monotonic() < end
        time.sleep(0.001)
    server.suspend()
    try:
        processes.kill(0.1)
        while {psutil.Process(pid).status() for pid in pids} != {psutil.STATUS_ZOMBIE}:
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        server.resume()
    assert gone(pids)


@pytest.fixture
def by_hand(monkeypatch):
    """Ranks, and the server's end of their socket, which this test holds."""
    here, server = socket.socketpair()
    lost = []
    monkeypatch.setattr(
        module,
        "warm",
        lambda: SimpleNamespace(
            connect=lambda: here, lost=lambda: lost.append(1) or WorkerError("lost", kind="server")
        ),
    )
    yield server
    server.close()


def lines(server) -> list:
    """All that was sent; what comes with descriptors is received on its own."""
    text = b""
    with contextlib.suppress(BlockingIOError):
        while part := server.recv(65536, socket.MSG_DONTWAIT):
            text += part
    return [json.loads(line) for line in text.splitlines()]


def test_what_the_server_is_told(by_hand):
    ranks = Processes(2, "spawn")
    assert lines(by_hand) == [{"start": rank, "method": "spawn"} for rank in range(2)]
    ranks.signal([1, 0], signal.SIGUSR1)
    ranks.tell(release=2.5)
    assert lines(by_hand) == [{"signal": [[1, 0], 10]}, {"release": 2.5}]
    ranks.leave()
    assert lines(by_hand) == [{"release": 5.0}]
    assert not ranks.begun()
    ranks.kill(20)  # nothing has started: the server hears of it when it has imported
    assert by_hand.recv(100) == b""
    ranks.signal([0], signal.SIGKILL)  # nobody hears it, and that is no error


def test_ranks_whose_start_is_news_are_killed_too(by_hand, monkeypatch):
    """The server has started them, and this process has not read of it."""
    killed = []
    monkeypatch.setattr(module, "kill_group", killed.append)
    ranks = Processes(1, "fork")
    lines(by_hand)
    by_hand.sendall(b'{"rank": 0, "pid": 77}\n')
    ranks.kill(0.05)  # the server does not answer
    assert lines(by_hand) == [{"signal": [[0], 9]}]
    assert killed == [77]


def test_a_rank_has_four_descriptors_and_none_that_blocks(by_hand):
    gc.collect()
    before = descriptors()
    rank = RankProcess(3)
    known = rank.rank, rank.pid, rank.status, rank.line, rank.problem, rank.joined
    assert known == (3, None, None, None, "", False)
    kinds = [os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in rank.theirs()]
    assert kinds == ["socket", "pipe", "pipe", "pipe"]
    for fd, theirs, text in zip(
        (rank.stdout, rank.stderr, rank.stacks), rank.theirs()[1:], (b"a", b"b", b"c"), strict=True
    ):
        with pytest.raises(BlockingIOError):
            os.read(fd, 1)
        os.write(theirs, text)
        assert os.read(fd, 9) == text
    rank.given_away()
    rank.listen()  # it has ended already
    rank.close()
    assert descriptors() == before


def test_a_server_that_is_gone_is_told_and_nothing_stays_open(by_hand):
    gc.collect()
    before = descriptors()
    ranks = Processes(1, "fork")
    lines(by_hand)
    by_hand.close()
    with pytest.raises(WorkerError, match="lost"):
        ranks.notices()
    assert not ranks.wait(20)
    with pytest.raises(WorkerError, match="lost"):
        Processes(2, "fork")
    ranks.close()
    ranks.close()
    gc.collect()
    assert descriptors() == before - 2  # both ends of the socket


@pytest.mark.parametrize(("method", "asked"), [("fork", [3]), ("spawn", [])])
def test_only_forks_are_made_ready_for_the_next_call(method, asked):
    said = []
    ranks = Processes.__new__(Processes)
    ranks.workers, ranks.method = 3, method
    ranks.ranks, ranks.socket = [], None
    ranks.server = SimpleNamespace(prepare=said.append)
    ranks.prepare_next()
    assert said == asked
