"""The clean process that ranks come from: what it holds, what its children share, what they see."""

import contextlib
import json
import os
import re
import shutil
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
from helpers.runtime.local.forkserver import bytecode, client, server
from tests.conftest import ROOT
from tests.runtime.local.forkserver.test_bootstrap import told

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
    """A cluster stays with the first; once the second is ready, other calls are the second's."""
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
            for _ in range(3):  # their ranks end, and are looked after
                assert launch(lambda worker: os.getppid(), workers=1)[0] == server.process.pid
            assert list(cluster.run(lambda worker: os.getppid())) == [parent]
    finally:
        client._server = current
        server.stop()


@linux
def test_one_thread_no_cuda_no_helpers_and_no_interrupt(late):
    assert late.num_threads() == 1
    status = Path(f"/proc/{late.pid}/status").read_text()
    ignored = int(re.search(r"^SigIgn:\s*(\w+)", status, re.M)[1], 16)
    for number in (signal.SIGINT, signal.SIGUSR1):  # a rank may get them before it listens
        assert ignored & 1 << (number - 1)
    maps = Path(f"/proc/{late.pid}/maps").read_text()
    assert "libtorch" in maps
    assert "nvidia" not in "".join(os.readlink(f) for f in Path(f"/proc/{late.pid}/fd").iterdir())

    def loaded(worker):

        import torch

        names = set(sys.modules)
        bad = getattr(torch._C, "_cuda_isInBadFork", bool)()  # only builds for CUDA have it
        return torch.cuda.is_initialized(), bad, names

    initialized, bad, names = launch(loaded, workers=1)[0]
    assert not initialized
    assert not bad
    assert {"torch._dynamo", "torch.distributed.fsdp", "cloudpickle"} <= names


@linux
def test_a_rank_reads_helpers_from_disk(late):
    """What the server has of it is forgotten, so that an edited file takes effect."""

    def loaded(worker):

        return [name for name in sys.modules if ".forkserver." in name]

    assert launch(loaded, workers=1)[0] == []


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


def spares(late) -> list[int]:
    """The server's processes that are no ranks, once there are as many as the last call had."""
    end = time.monotonic() + 20
    while True:
        here = [child.pid for child in late.children()]
        if len(here) == 2 and not any(map(ending, here)):
            return here
        assert time.monotonic() < end, here
        time.sleep(0.05)


def ending(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def leave_two(late) -> list[int]:
    launch(lambda worker: None)
    time.sleep(0.2)  # its ranks end
    return spares(late)


@linux
def test_the_next_ranks_wait_already_and_each_is_used_once(late):
    """They are fresh all the same, and cost little memory."""
    ready = leave_two(late)
    own = max(map(private, ready))
    print(f"private to a spare: {own / 1e6:.0f} MB")
    assert own < 30e6

    def who(worker):
        import multiprocessing

        return os.getpid(), multiprocessing.current_process().name, os.environ.get("A_MARK")

    os.environ["A_MARK"] = "set since they were forked"
    try:
        runs = launch(who, workers=3)
    finally:
        del os.environ["A_MARK"]
    assert {pid for pid, _, _ in runs[:2]} == set(ready)
    assert runs[2][0] not in ready
    assert [run[1:] for run in runs] == [
        (f"rank {rank}", "set since they were forked") for rank in range(3)
    ]
    launch(lambda worker: None)
    assert not set(spares(late)) & set(ready)


@linux
def test_a_spare_that_was_killed_is_no_rank(late):
    ready = leave_two(late)
    for pid in ready:
        os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid) for pid in ready if psutil.pid_exists(pid)], 20)
    assert list(launch(lambda worker: worker.rank)) == [0, 1]
    assert not set(spares(late)) & set(ready)


@linux
def test_spares_end_with_their_server():
    one = client.Server()
    current, client._server = client._server, one
    try:
        one.late.recv(16)  # it is ready
        one.late_is_ready = lambda: True
        ready = leave_two(psutil.Process(one.process.pid))
    finally:
        client._server = current
        one.stop()
    assert not any(map(psutil.pid_exists, ready))


@linux
@pytest.mark.parametrize("without", ["", "1"])
def test_an_edited_file_takes_effect_though_a_spare_has_read_it(tmp_path, without):
    """On a copy of the package: the notebook's own process imports it, too.

    Also if Python keeps no compiled sources: then they are kept in the user's cache.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "helpers", tmp_path / "helpers", ignore=ignored)
    program, cache = tmp_path / "program.py", tmp_path / "cache"
    program.write_text(EDITS, "utf-8")
    environ = {
        **os.environ,
        "PYTHONPATH": "",
        "PYTHONDONTWRITEBYTECODE": without,
        "HELPERS_CACHE": str(cache),
    }
    command = [sys.executable, str(program)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200
    )
    old, said, new = done.stdout.splitlines()
    assert (old, new) == ("old", "new"), done.stderr
    assert "worker.py changed since this process imported it" in said
    kept = {file.name.split(".")[0] for file in cache.rglob("*.pyc")}
    beside = list((tmp_path / "helpers").rglob("*.pyc"))
    assert {"program", "worker", "channel"} <= kept if without else not kept
    assert bool(beside) != bool(without)


def test_only_this_package_s_compiled_sources_are_kept_elsewhere(tmp_path):
    for path in (bytecode.PACKAGE, os.path.join(bytecode.PACKAGE, "comm")):
        assert bytecode.hook(path).path == path
    for path in (f"{bytecode.PACKAGE}_of_a_student", os.path.dirname(bytecode.PACKAGE)):
        with pytest.raises(ImportError, match="is not in this package"):
            bytecode.hook(path)
    before = sys.pycache_prefix, sys.dont_write_bytecode
    loader = bytecode.Loader(bytecode.__name__, bytecode.__file__)
    loader.folder = str(tmp_path)
    assert loader.get_code(bytecode.__name__)
    assert [*tmp_path.rglob("bytecode.*.pyc")]
    assert (sys.pycache_prefix, sys.dont_write_bytecode) == before


EDITS = """
import os, pathlib, time
import helpers
from helpers.runtime.launch import launch
from helpers.runtime.local.forkserver import client

def told(worker):
    from helpers.runtime import worker
    return getattr(worker, "EDITED", "old")

if __name__ == "__main__":
    client.warm().late.recv(16)
    client.warm().late_is_ready = lambda: True
    launch(told, workers=1)
    time.sleep(2)
    print(launch(told, workers=1)[0])
    time.sleep(2)
    file = pathlib.Path("helpers/runtime/worker.py")
    file.write_text(file.read_text() + '\\nEDITED = "new"\\n')
    print(launch(told, workers=1)[0])
"""


def test_a_server_whose_spares_end_at_once_does_not_fork_for_ever(one):
    """Nor one that cannot fork."""
    one.wanted = 2
    one.spares = [server.Spare(7, socket.socketpair()[0])]
    one.processes = {7: SimpleNamespace(pid=7, exitcode=1, close=lambda: None)}
    one.reap()
    assert (one.wanted, one.spares, one.processes) == (0, [], {})
    one.wanted = 2
    one.foreign = one.modules = lambda *_: None

    def cannot(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    one.process = cannot
    one.fork_a_spare()
    assert (one.wanted, one.spares) == (0, [])


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
    bare.give_way, bare.spawned, bare.modules, bare.spares = None, False, [], []
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

    for rank, run in enumerate(launch(who)):
        assert run == ("ForkProcess", f"rank {rank}", False, late.pid, late.pid)


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
    bare.processes, bare.clusters, bare.spares = {}, [], []
    bare.orphans = SimpleNamespace(end=lambda *_: None)
    bare.give_way = SimpleNamespace(busy=said.append)
    bare.reap()
    assert said == [0]
    bare.processes = {1: SimpleNamespace(exitcode=None)}
    bare.reap()
    assert said == [0]
    bare.spares = [server.Spare(1, None)]  # it is no rank yet
    bare.reap()
    assert said == [0, 0]


@pytest.fixture
def one(monkeypatch):
    """A server in this process, and the notebook's end of its line: `one.notebooks_end`."""
    monkeypatch.setattr(server, "POLL_SECONDS", 0.01)
    bare = server.Server.__new__(server.Server)
    bare.control, bare.notebooks_end = socket.socketpair()
    bare.notebook, bare.give_way, bare.modules = (os.getpid(), None), None, ["helpers"]
    bare.text, bare.ending, bare.spawned = b"", False, False
    bare.clusters, bare.folders, bare.processes, bare.wake = [], set(), {}, os.pipe()
    bare.wanted, bare.spares = 0, []
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


@pytest.fixture
def bare(one, cluster):
    """A server that was told to retire, with one cluster of two ranks: processes that sleep."""
    ranks, one.there = cluster
    one.control.close()
    one.control = None
    one.children = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]
    ranks.rank_of = {child.pid: rank for rank, child in enumerate(one.children)}
    one.clusters = [ranks]
    rounds = iter(range(300))  # the server would go on for ever

    def reap():
        one.ending |= next(rounds, None) is None
        for child in one.children:
            if child.poll() is not None:
                ranks.rank_of.pop(child.pid, None)
        if not ranks.rank_of:
            one.clusters = []

    one.reap = reap
    yield one
    for child in one.children:
        child.kill()
        child.wait()


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


@pytest.mark.parametrize("how", ["hang up", "killed"])
def test_a_notebook_that_hangs_up_ends_its_ranks(bare, how):
    if how == "killed":  # with words of the server that it has not read: a reset
        bare.clusters[0].tell(rank=1, pid=7)
    bare.there.close()
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
    assert {its_end, other, other_end} <= bare.foreign([own])
    assert not {0, 1, 2, own} & bare.foreign([own])
    tracker = resource_tracker.getfd()
    assert tracker in bare.foreign([own])
    bare.spawned = True
    assert tracker not in bare.foreign([own])
    for fd in (own, its_end, other, other_end):
        os.close(fd)


def heard(there) -> list:
    return [json.loads(line) for line in there.recv(10_000, socket.MSG_DONTWAIT).splitlines()]


def test_lines_of_the_notebook_may_arrive_in_pieces(one):
    for words in (b"\nfold", b"er /a folder\nfolder /b\nspares 90", b"0\nre"):
        one.notebooks_end.sendall(words)
        one.accept()
    assert one.folders == {"/a folder", "/b"}
    assert one.wanted == server.MOST_SPARES
    assert one.control
    one.notebooks_end.sendall(b"tire\n")
    one.accept()
    assert (one.control, one.ending) == (None, False)


def test_each_socket_that_the_notebook_sends_is_a_cluster(one):
    for _ in range(2):
        one.wanted = 2
        here, there = socket.socketpair()
        with there:
            socket.send_fds(one.notebooks_end, [b"\n"], [there.fileno()])
        one.accept()
        one.clusters[-1].tell(rank=3, pid=7)
        assert heard(here) == [{"rank": 3, "pid": 7}]
        here.close()
        assert one.wanted == 0  # the call comes first
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
