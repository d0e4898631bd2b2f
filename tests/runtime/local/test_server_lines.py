"""What the server hears, starts and reports; no rank is started here."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch.multiprocessing

from helpers.runtime.local import server
from helpers.runtime.local.bootstrap import Handed, become_rank
from tests.runtime.local.test_bootstrap import forked, told


@pytest.fixture
def one(monkeypatch):
    """A server, and the notebook's end of its line: `one.notebooks_end`."""
    monkeypatch.setattr(server, "POLL_SECONDS", 0.01)
    bare = server.Server.__new__(server.Server)
    bare.control, bare.notebooks_end = socket.socketpair()
    bare.notebook, bare.give_way, bare.modules = (os.getpid(), None), None, ["helpers"]
    bare.text, bare.ending, bare.spawned = b"", False, False
    bare.clusters, bare.folders, bare.processes, bare.wake = [], set(), {}, os.pipe()
    bare.looked = []
    bare.orphans = SimpleNamespace(known=set(), end=lambda *of: bare.looked.append(of))
    os.set_blocking(bare.wake[0], False)
    yield bare
    for end in (bare.control, bare.notebooks_end, *(c.socket for c in bare.clusters)):
        if end:
            end.close()
    for fd in bare.wake:
        os.close(fd)


@pytest.fixture
def cluster(one):
    """The server's side of a cluster, and the notebook's."""
    here, there = socket.socketpair()
    ranks = server.Ranks(here)
    yield ranks, there
    for end in (ranks.socket, there):
        if end:
            end.close()


def heard(there) -> list:
    return [json.loads(line) for line in there.recv(10_000, socket.MSG_DONTWAIT).splitlines()]


def test_lines_of_the_notebook_may_arrive_in_pieces(one):
    for words in (b"\nfold", b"er /a folder\nfolder /b\nre"):
        one.notebooks_end.sendall(words)
        one.accept()
    assert one.folders == {"/a folder", "/b"}
    assert one.control
    one.notebooks_end.sendall(b"tire\n")
    one.accept()
    assert (one.control, one.ending) == (None, False)


def test_each_socket_that_the_notebook_sends_is_a_cluster(one):
    for _ in range(2):
        here, there = socket.socketpair()
        with there:
            socket.send_fds(one.notebooks_end, [b"\n"], [there.fileno()])
        one.accept()
        one.clusters[-1].tell(rank=3, pid=7)
        assert heard(here) == [{"rank": 3, "pid": 7}]
        here.close()
    assert len(one.clusters) == 2
    assert not one.ending


@pytest.mark.parametrize("how", ["end", "hang up", "killed"])
def test_the_server_ends_when_it_is_told_and_when_the_notebook_is_gone(one, how):
    if how == "killed":  # with words of the server that it has not read
        one.control.sendall(b"ready\n")
    if how == "end":
        one.notebooks_end.sendall(b"end\n")
    else:
        one.notebooks_end.close()
    one.accept()
    assert one.ending


def test_a_rank_gets_the_four_descriptors_of_its_order(one, cluster):
    """Orders and descriptors may arrive in pieces; the next order has its own."""
    ranks, there = cluster
    started, pipes = [], [os.pipe() for _ in range(4)]

    def start(rank, method, fds):
        started.append((rank, method, [os.fstat(fd).st_ino for fd in fds]))
        for fd in fds:
            os.close(fd)
        return 40 + rank

    one.start = start
    ends = [fd for pipe in pipes for fd in pipe]
    inodes = [os.fstat(fd).st_ino for fd in ends]
    socket.send_fds(there, [b'{"start": 1, "method"'], ends[:4])
    one.hear(ranks)
    assert started == []
    socket.send_fds(there, [b': "fork"}\n{"start": 2, "method": "spawn"}\n{"rel'], ends[4:])
    one.hear(ranks)
    assert started == [(1, "fork", inodes[:4]), (2, "spawn", inodes[4:])]
    assert ranks.rank_of == {41: 1, 42: 2}
    assert heard(there) == [{"rank": 1, "pid": 41}, {"rank": 2, "pid": 42}]
    assert (ranks.fds, ranks.deadline) == ([], None)
    there.sendall(b'ease": 1000}\n')
    one.hear(ranks)
    assert 990 < ranks.deadline - time.monotonic() <= 1000
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_started_rank_has_its_descriptors_and_the_server_none(one, monkeypatch, method):
    made, busy = [], []

    def process(**how):
        made.append(how)
        return SimpleNamespace(pid=42, start=lambda: made.append("started"))

    monkeypatch.setattr(
        torch.multiprocessing, "get_context", lambda of: made.append(of) or one.context
    )
    one.context = SimpleNamespace(Process=process)
    one.give_way = SimpleNamespace(busy=busy.append)
    one.foreign = lambda fds: {"not": fds}
    fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    assert one.start(3, method, fds) == 42
    of, how, begun = made
    assert (of, begun, how["name"], how["target"]) == (method, "started", "rank 3", become_rank)
    if method == "fork":
        assert how["args"] == (*fds, {"not": fds}, ["helpers"])
    else:
        assert [(type(handed), handed.fd) for handed in how["args"]] == [(Handed, n) for n in fds]
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    assert one.processes[42].pid == 42
    assert (one.spawned, busy) == (method == "spawn", [server.GIVE_WAY_SECONDS])


def test_each_end_is_told_to_the_cluster_of_the_rank_and_looked_after(one, cluster):
    ranks, there = cluster
    closed = []

    def process(pid, exitcode):
        return SimpleNamespace(pid=pid, exitcode=exitcode, close=lambda: closed.append(pid))

    one.processes = {pid: process(pid, code) for pid, code in ((1, None), (2, 3), (3, -9), (4, 0))}
    ranks.rank_of = {1: 0, 2: 1, 3: 2}
    other = server.Ranks(None, {4: 0})  # its notebook has hung up
    one.clusters, ended = [other, ranks], [one.processes[pid] for pid in (2, 3, 4)]
    one.reap()
    assert heard(there) == [{"rank": 1, "status": 3}, {"rank": 2, "status": -9}]
    assert (ranks.rank_of, list(one.processes), closed) == ({1: 0}, [1], [2, 3, 4])
    assert one.looked == [(one.processes, ended)]
    assert one.clusters == [ranks]


@pytest.mark.timeout(60)
def test_the_end_leaves_nothing_and_does_not_last_for_ever(one, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "END_SECONDS", 60.0)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "file").touch()
    one.folders = {*map(str, folders), str(tmp_path / "gone already")}
    kills, one.processes, one.orphans.known = [], {1: "a rank"}, {7}
    one.clusters = [SimpleNamespace(kill=lambda: kills.append(1), socket=None)]

    def reap():
        if len(kills) == 2:
            one.processes.clear()
        if len(kills) == 4:  # what the rank has left
            one.orphans.known.clear()

    one.reap = reap
    one.end()
    assert len(kills) == 4
    assert list(tmp_path.iterdir()) == []
    one.processes[1] = "a rank that cannot be killed"
    monkeypatch.setattr(server, "END_SECONDS", 0.02)
    one.end()
    assert len(kills) > 4


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_a_notebook_that_nobody_has_waited_for_is_gone_all_the_same(one):
    with subprocess.Popen(["sleep", "100"]) as notebook:
        one.notebook = notebook.pid, os.pidfd_open(notebook.pid)
        assert one.notebook_lives()
        notebook.kill()
        end = time.monotonic() + 20
        while one.notebook_lives():
            assert time.monotonic() < end
        os.close(one.notebook[1])
        one.notebook = os.getpid(), None
        assert one.notebook_lives()


def test_one_round_hears_everyone_and_empties_the_pipe_of_signals(one, cluster):
    ranks, there = cluster
    one.clusters, ended = [ranks], []
    os.write(one.wake[1], b"\x11\x11")
    there.sendall(b'{"release": 1000}\n')
    one.notebooks_end.sendall(b"folder /none/such\n")

    def reap():
        one.ending = True

    one.reap, one.end = reap, lambda: ended.append(True)
    one.serve()
    assert (ranks.deadline is not None, one.folders, ended) == (True, {"/none/such"}, [True])
    with pytest.raises(BlockingIOError):
        os.read(one.wake[0], 1)


def test_a_word_to_a_notebook_that_has_hung_up_is_no_error(cluster):
    ranks, there = cluster
    there.close()
    ranks.tell(rank=1, status=0)
    ranks.socket.close()
    ranks.socket = None
    ranks.tell(rank=1, status=0)


def test_a_signal_wakes_a_new_server():
    """In a fork, whose signals are its own."""

    def look():
        one = server.Server("line", (1, None), "gives way", elder=7)
        flags = [os.get_blocking(end) for end in one.wake]
        os.kill(os.getpid(), signal.SIGCHLD)
        woken = one.wake[0] in server.ready([one.wake[0]], 20)
        return flags, woken, one.orphans.spare, one.control, one.give_way, "helpers" in one.modules

    assert told(look) == "([False, False], True, 7, 'line', 'gives way', True)"


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.timeout(60)
@pytest.mark.parametrize("possible", ["1", None])
def test_two_generations_serve_where_ranks_are_forked(monkeypatch, start, possible):
    """The second gives way to the first. Where ranks are spawned, there is one generation."""
    (early, early_there), (late, late_there) = socket.socketpair(), socket.socketpair()
    lines, (reading, writing) = (early_there.fileno(), late_there.fileno()), os.pipe()

    class Noted:
        def __init__(self, control, notebook, give_way=None, elder=None):
            network = os.environ.get(server.network.POSSIBLE)
            ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            place = lines.index(control.fileno()), give_way is not None, elder is not None
            self.said = repr((*place, notebook[0], network, ignored))

        def serve(self):
            os.write(writing, f"{self.said}\n".encode())

    for name in ("import_first", "import_rest", "leave_standing"):
        monkeypatch.setattr(server, name, lambda: None)
    monkeypatch.delenv(server.network.POSSIBLE, raising=False)
    monkeypatch.setattr(server.network, "possible", lambda: bool(possible))
    monkeypatch.setattr(server, "Server", Noted)
    child = forked(lambda: server.main(*map(str, lines), str(os.getppid()), start))
    os.close(writing)
    for end in (early_there, late_there):
        end.close()
    with open(reading) as said:
        generations = sorted(map(eval, said.read().splitlines()))
    assert os.waitpid(child, 0)[1] == 0
    first, second = (0, True, False), (1, False, start == "fork")
    network = possible if sys.platform == "linux" else None
    rest = (os.getpid(), network, True)
    assert generations == [(*first, *rest)] * (start == "fork") + [(*second, *rest)]
    assert [late.recv(100), late.recv(100), early.recv(100)] == [b"ready\n", b"", b""]
    early.close()
    late.close()
