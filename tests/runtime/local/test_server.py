"""The clean process that ranks come from: what it holds, what its children share, what they see."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from helpers.runtime.cluster import Cluster
from helpers.runtime.launch import launch
from helpers.runtime.local import client, server

linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def late():
    """The server, once its second generation serves."""
    end = time.monotonic() + 60
    while client.warm().early:
        launch(lambda worker: None, workers=1)
        assert time.monotonic() < end
        time.sleep(0.1)
    return psutil.Process(client.warm().process.pid)


def private(pid: int) -> int:
    """Bytes that a process shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(map(int, re.findall(r"^Private_\w+: +(\d+) kB", text, re.M)))


def test_both_generations_serve():
    """A call at once, and one when the second has taken over: each has its ranks from it."""
    server = client.Server()
    current, client._server = client._server, server
    try:
        parents, deadline = set(), time.monotonic() + 60
        while server.early is not None:
            parents.add(launch(lambda worker: os.getppid(), workers=1)[0])
            assert time.monotonic() < deadline
        assert launch(lambda worker: os.getppid(), workers=1)[0] == server.process.pid
        assert parents - {server.process.pid}
    finally:
        client._server = current
        server.stop()


def test_a_call_of_the_first_goes_on_while_the_second_has_others():
    server = client.Server()
    current, client._server = client._server, server
    try:
        with Cluster(1) as cluster:
            parent = cluster.run(lambda worker: os.getppid())[0]
            assert parent != server.process.pid
            deadline = time.monotonic() + 60
            while server.early is not None:
                launch(lambda worker: None, workers=1)
                assert time.monotonic() < deadline
            for _ in range(3):
                launch(lambda worker: None, workers=1)  # its ranks end, and are looked after
            assert list(cluster.run(lambda worker: os.getppid())) == [parent]
    finally:
        client._server = current
        server.stop()


@linux
def test_one_thread_no_cuda_no_helpers(late):
    assert late.num_threads() == 1
    maps = Path(f"/proc/{late.pid}/maps").read_text()
    assert "libtorch" in maps
    assert "nvidia" not in "".join(os.readlink(f) for f in Path(f"/proc/{late.pid}/fd").iterdir())

    def loaded(worker):
        import sys

        import torch

        names = set(sys.modules)
        return torch.cuda.is_initialized(), names

    initialized, names = launch(loaded, workers=1)[0]
    assert not initialized
    assert {"torch._dynamo", "torch.distributed.fsdp", "cloudpickle"} <= names


@linux
def test_a_rank_reads_helpers_from_disk(late):
    """What the server has of it is forgotten, so that an edited file takes effect."""

    def loaded(worker):
        import sys

        return [name for name in sys.modules if name.startswith("helpers.runtime.local.")]

    ours = {f"helpers.runtime.local.{name}" for name in ("server", "preload", "bootstrap")}
    assert ours.isdisjoint(launch(loaded, workers=1)[0])


@linux
def test_memory_is_shared_not_copied(late):
    whole = late.memory_info().rss
    with Cluster(2) as cluster:
        own = [private(pid) for pid in cluster.run(lambda worker: os.getpid())]
    print(f"the server: {whole / 1e6:.0f} MB; private to a rank: {max(own) / 1e6:.0f} MB")
    assert max(own) < whole / 3


def test_fresh_processes_each_time(late):
    def mark(worker):
        import torch

        seen = getattr(torch, "_a_mark", None)
        torch._a_mark = worker.rank
        return os.getpid(), seen

    calls = [launch(mark) for _ in range(2)]
    pids = [pid for runs in calls for pid, _ in runs]
    assert len(set(pids)) == 4
    assert [seen for runs in calls for _, seen in runs] == [None] * 4
    assert late.pid not in pids
    assert os.getpid() not in pids


def test_ranks_lead_their_own_sessions_and_hold_nothing_of_each_other(late):
    def mine(worker):
        links = set()
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                links.add(os.readlink(f"/proc/self/fd/{fd}"))
        return os.getsid(0) == os.getpid(), {link for link in links if "pipe" in link}

    with Cluster(2) as cluster:
        (leads, first), (_, second) = cluster.run(mine)
    assert leads
    assert len(first) >= 3  # stdout, stderr, stacks; and gloo's own
    assert not first & second
    servers = set()
    for fd in Path(f"/proc/{late.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            servers.add(os.readlink(fd))
    assert servers
    for pipes in (first, second):  # multiprocessing's: by which each learns of the other's end
        assert len(pipes & servers) == 2


def test_a_rank_that_cannot_be_started_is_told(monkeypatch):
    told = []

    class Socket:
        def sendall(self, data):
            told.append(data)

    def no_memory():
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", no_memory)
    monkeypatch.setattr(
        server.socket,
        "recv_fds",
        lambda *_: (
            b'{"start": 2, "method": "fork"}\n',
            [os.dup(0) for _ in range(4)],
            0,
            None,
        ),
    )
    bare = server.Server.__new__(server.Server)
    bare.give_way, bare.spawned, bare.modules = None, False, []
    before = len(os.listdir("/proc/self/fd"))
    bare.hear(server.Ranks(Socket()))
    assert told == [b'{"rank": 2, "status": 70, "problem": "[Errno 12] Cannot allocate memory"}\n']
    assert len(os.listdir("/proc/self/fd")) - before <= 4  # the pipes of the Process that is not


def test_ranks_are_processes_of_torch_multiprocessing(late):
    def who(worker):
        import multiprocessing

        process = multiprocessing.current_process()
        parent = multiprocessing.parent_process()
        return type(process).__name__, process.name, process.daemon, parent.pid, os.getppid()

    for start, kind in (("fork", "ForkProcess"), ("spawn", "SpawnProcess")):
        for rank, run in enumerate(launch(who, start=start)):
            assert run == (kind, f"rank {rank}", False, late.pid, late.pid)


def test_more_files_than_select_knows(late):
    """The notebook has thousands of files open, and so the server's descriptors are high."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4000:
        pytest.skip("needs the right to open 4,000 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4000, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1500)]
    current, client._server = client._server, None
    try:
        assert list(launch(lambda worker: worker.rank)) == [0, 1]
        client._server.stop()
    finally:
        client._server = current
        for fd in files:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_notebook_that_is_killed_early_leaves_no_folder(tmp_path):
    """Its server still imports, and hears of the folder and of the end at once."""
    script, temp = tmp_path / "script.py", tmp_path / "temp"
    temp.mkdir()
    script.write_text(
        """
from helpers import launch
import os, signal
def flood(worker):
    for i in range(3000):
        print(i)
launch(flood, workers=1)
print(os.listdir(os.environ["TMPDIR"]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    root = Path(__file__).resolve().parents[3]
    environ = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(temp)}
    done = subprocess.run(
        [sys.executable, script], env=environ, capture_output=True, text=True, timeout=60
    )
    assert "['helpers-" in done.stdout, done.stderr
    until = time.monotonic() + 30
    while list(temp.glob("helpers-*")):  # PyTorch makes a folder of its own
        assert time.monotonic() < until, list(temp.iterdir())
        time.sleep(0.1)


def test_a_rank_s_end_takes_nothing_of_the_server_s_down(late):
    """PyTorch has a hundred finalizers: to call them all would cost each rank 0.1 s."""

    def finalizers(worker):
        import weakref

        registry = list(weakref.finalize._registry)
        return len(registry), sum(finalizer.atexit for finalizer in registry)

    there, to_be_called = launch(finalizers, workers=1)[0]
    assert there > 50
    assert to_be_called == 0


def test_the_imports_go_on_once_no_rank_is_left():
    said = []
    bare = server.Server.__new__(server.Server)
    bare.processes, bare.clusters = {}, []
    bare.orphans = SimpleNamespace(end=lambda *_: None)
    bare.give_way = SimpleNamespace(busy=said.append)
    bare.reap()
    assert said == [0]
    bare.processes = {1: SimpleNamespace(exitcode=None)}
    bare.reap()
    assert said == [0]


@pytest.fixture
def bare(monkeypatch):
    """A server in this process, with one cluster of two ranks: processes that sleep."""
    monkeypatch.setattr(server, "POLL_SECONDS", 0.01)
    one = server.Server.__new__(server.Server)
    one.control, one.notebook, one.give_way = None, (os.getpid(), None), None
    one.ending, one.folders, one.processes, one.wake = False, set(), {}, os.pipe()
    one.orphans = SimpleNamespace(known=set(), end=lambda *_: None)
    here, there = socket.socketpair()
    children = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]
    ranks = server.Ranks(here, {child.pid: rank for rank, child in enumerate(children)})
    one.clusters, one.there, one.children = [ranks], there, children
    rounds = iter(range(300))  # the server would go on for ever

    def reap():
        one.ending |= next(rounds, None) is None
        for child in children:
            if child.poll() is not None:
                ranks.rank_of.pop(child.pid, None)
        if not ranks.rank_of:
            one.clusters = []

    one.reap = reap
    yield one
    for child in children:
        child.kill()
        child.wait()
    for end in (here, there):
        end.close()
    for fd in one.wake:
        os.close(fd)


def test_ranks_that_do_not_leave_in_time_are_killed(bare):
    bare.there.sendall(b'{"release": 1000}\n{"release": 0.05}\n')  # the later word counts
    bare.serve()
    assert not bare.ending
    assert [child.wait() for child in bare.children] == [-signal.SIGKILL] * 2


def test_the_server_ends_with_the_notebook_though_a_fork_keeps_its_sockets(bare):
    gone = subprocess.Popen(["true"])
    gone.wait()
    bare.notebook, ended = (gone.pid, None), []
    bare.end = lambda: ended.append([child.poll() for child in bare.children])
    rounds = []

    def reap():
        rounds.append(True)
        bare.ending |= len(rounds) > 20  # instead of for ever

    bare.reap = reap
    bare.serve()
    assert len(rounds) == 1
    assert ended == [[None, None]]


def test_a_notebook_that_hangs_up_leaves_only_ranks_that_leave(bare):
    [ranks] = bare.clusters
    ranks.deadline = time.monotonic() + 1000
    bare.there.shutdown(socket.SHUT_RDWR)
    bare.hear(ranks)
    assert ranks.socket is None
    time.sleep(0.05)
    assert [child.poll() for child in bare.children] == [None, None]
    server.Server.reap(bare)
    assert bare.clusters == [ranks]  # until they are gone
    ranks.rank_of.clear()
    server.Server.reap(bare)
    assert bare.clusters == []


def test_a_notebook_that_hangs_up_ends_its_ranks(bare):
    bare.there.shutdown(socket.SHUT_RDWR)
    bare.hear(bare.clusters[0])
    assert [child.wait(20) for child in bare.children] == [-signal.SIGKILL] * 2


def test_a_signal_reaches_the_ranks_that_it_names(bare):
    bare.there.sendall(b'{"signal": [[1], 15]}\n')
    bare.hear(bare.clusters[0])
    assert bare.children[1].wait(20) == -signal.SIGTERM
    with pytest.raises(subprocess.TimeoutExpired):
        bare.children[0].wait(0.2)


def test_a_fork_lets_go_of_all_but_its_own_and_the_tracker_of_spawned_ranks(bare):
    (own, its_end), (other, other_end) = os.pipe(), os.pipe()
    bare.spawned = False
    assert {its_end, other, other_end} <= bare.foreign([own])
    assert not {0, 1, 2, own} & bare.foreign([own])
    tracker = resource_tracker.getfd()
    assert tracker in bare.foreign([own])
    bare.spawned = True
    assert tracker not in bare.foreign([own])
    for fd in (own, its_end, other, other_end):
        os.close(fd)
