"""The notebook's hold on its server."""

import gc
import os
import signal
import socket
import subprocess
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.runtime.failure import CannotStart, ServerLost, WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local.forkserver import client
from helpers.runtime.local.forkserver.client import Server, start_method
from helpers.runtime.private import anonymous_file


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


def test_a_server_has_nothing_of_the_notebook_in_the_way(server):
    """A terminal interrupts the process group in its foreground, and ends its session."""
    pid = server.process.pid
    assert os.getpgid(pid) != os.getpgid(0)
    assert os.getsid(pid) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"  # so the notebook's folder can be removed
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)]
    assert links[:2] == [os.devnull] * 2
    assert "memfd" in links[2]  # what it writes there is told with its end
    environ = open(f"/proc/{pid}/environ", "rb").read().split(b"\0")  # noqa: SIM115
    assert {b"OPENBLAS_NUM_THREADS=1", b"GLIBC_TUNABLES=glibc.malloc.hugetlb=1"} <= set(environ)
    assert f"PATH={os.environ['PATH']}".encode() in environ


def test_a_server_that_was_killed_is_noticed_and_costs_no_descriptor(server):
    """On both lines: so the notebook keeps no other end of them."""
    assert server.usable()
    server.process.kill()
    server.process.wait()
    assert not server.usable()
    for line in filter(None, (server.early, server.late)):  # the early one may have retired
        line.settimeout(20)
        assert line.recv(16) == b""
    for _ in range(2):
        with pytest.raises(ServerLost, match="is gone"):
            server.connect()
        before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) == before
    server.remember("/none/such")  # it does not hear it, and that is no error


def test_stopping_waits_until_it_is_gone_and_leaves_nothing_open():
    gc.collect()  # what other tests have left would be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    server = Server()
    server.stop()
    assert server.process.poll() is not None
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_fork_of_the_notebook_that_ends_leaves_the_server_alone():
    launch(lambda worker: None)
    server = client._server
    if (child := os.fork()) == 0:
        usable = server.usable()
        client.stop()  # as at the end of every process
        os._exit(int(usable))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # a fork starts its own
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(0.3)
    assert list(launch(lambda worker: worker.rank)) == [0, 1]
    assert client._server is server


def test_connecting_leaves_nothing_open(server):
    server.connect().close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        server.connect().close()
    assert len(os.listdir("/proc/self/fd")) <= before  # one less once the second generation serves


def test_the_way_to_start_can_be_chosen(monkeypatch):
    monkeypatch.setenv(client.START, "spawn")
    assert start_method() == "spawn"
    monkeypatch.delenv(client.START)
    monkeypatch.setattr(client.sys, "platform", "linux")
    assert start_method() == "fork"
    monkeypatch.setattr(client.sys, "platform", "darwin")
    assert start_method() == "spawn"


@pytest.fixture
def no_server(monkeypatch):
    """As in a notebook that has not launched anything."""
    monkeypatch.setattr(client, "_server", None)
    yield
    if client._server:
        client._server.stop()


def test_a_server_that_cannot_be_started_or_dies(no_server, monkeypatch, capfd):
    """All that the reader sees is one kind of error, and the next call works."""

    def no_memory(*args, **kwargs):
        raise OSError(11, "Resource temporarily unavailable")

    before = len(os.listdir("/proc/self/fd"))
    for where, name, problem, said in (
        (client.subprocess, "Popen", no_memory, "Resource temporarily unavailable"),
        (client, "PROGRAM", "raise ImportError('libtorch is broken')", "libtorch is broken"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, problem)
            with pytest.raises(WorkerError, match="rank 0 could not start: ") as caught:
                launch(lambda worker: None)
        assert said in str(caught.value)
        client._server = None
        del caught
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before
    for delay in (0.0, 0.01):  # it is killed as a call begins
        launch(lambda worker: None)
        victim = client._server.process
        timer = threading.Timer(delay, victim.kill)
        timer.start()
        kind = "server"
        try:
            launch(lambda worker: time.sleep(0.1))
        except WorkerError as error:
            kind = error.kind
        assert kind in ("server", "died")
        timer.join()
        victim.wait()
    assert list(launch(lambda worker: worker.rank)) == [0, 1]
    assert capfd.readouterr().err == ""


def test_an_interrupt_while_the_server_still_imports(no_server, monkeypatch, tmp_path):
    go = tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n"
    monkeypatch.setattr(client, "PROGRAM", wait + client.PROGRAM)
    client.warm()
    timer = threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        launch(lambda worker: time.sleep(60))
    go.touch()
    assert list(launch(lambda worker: worker.rank)) == [0, 1]


def test_a_server_that_fails_later_could_be_started(monkeypatch):
    """Its last words are known still after its end."""
    program = "import sys; sys.stderr.write('so it ended  '); sys.exit(3)"
    monkeypatch.setattr(client, "PROGRAM", program)
    server = Server()
    server.process.wait()
    server.stop()
    lost = server.lost()
    assert isinstance(lost, CannotStart)
    assert str(lost).endswith("the process that ranks come from has failed\nso it ended")
    server.served = True  # it has started a rank before
    assert isinstance(server.lost(), ServerLost)
    assert "so it ended" in str(server.lost())


def test_a_server_that_has_hung_up_gets_a_moment_to_end(monkeypatch):
    """Its socket closes before its process has an exit code."""
    program = "import os, sys, time; os.close(int(sys.argv[2])); os.close(int(sys.argv[3]));"
    monkeypatch.setattr(client, "PROGRAM", f"{program} time.sleep(0.5); sys.exit('no libtorch')")
    server = Server()
    assert server.late.recv(1) == b""
    assert server.process.poll() is None
    with pytest.raises(CannotStart, match="no libtorch"):
        server.connect()
    server.stop()


def test_a_server_that_hangs_up_and_lives_is_lost_all_the_same(monkeypatch):
    monkeypatch.setattr(client, "PROGRAM", "import time; time.sleep(100)")
    monkeypatch.setattr(client, "END_SECONDS", 0.01)
    server = Server()
    lost = server.lost()
    assert (type(lost), lost.kind) == (ServerLost, "server")
    assert not server.usable()  # it was ended: the next call needs another
    server.stop()


def test_last_words_are_read_whole_while_the_server_writes_and_other_threads_read(by_hand):
    """They share one position in the file."""
    one, *_ = by_hand
    for words in (b"first", b" and second\n"):
        os.write(one.errors, words)
        with ThreadPoolExecutor(4) as threads:
            told = set(threads.map(lambda _: one.last_words(), range(50)))
        assert len(told) == 1
    assert told == {"first and second"}


def test_a_second_generation_that_died_with_our_words_unread_is_only_lost(by_hand):
    """The system calls that a reset, as soon as the notebook reads."""
    one, early, late, _ = by_hand
    one.remember(Path("/a/b"))
    late.close()
    one.connect().close()  # the first generation still serves
    early.close()
    one.process.wait = lambda *_: -9
    with pytest.raises(ServerLost):
        one.connect()


@pytest.mark.parametrize(("name", "value"), [(client.START, "spawn"), (client.EARLY, "no")])
def test_where_ranks_are_spawned_or_can_wait_there_is_one_generation(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "PROGRAM", "import time; time.sleep(100)")
    server = Server()
    assert server.early is None
    server.connect().close()
    server.process.kill()
    server.stop()


def test_a_fork_has_a_lock_of_its_own():
    """The thread that held it does not exist there."""
    with client._lock:
        if (child := os.fork()) == 0:
            os._exit(not client._lock.acquire(blocking=False))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def by_hand():
    """A server whose ends of the two lines this test has; its process notes what happens to it."""
    one, done = object.__new__(Server), []
    (one.early, early), (one.late, late) = socket.socketpair(), socket.socketpair()
    for end in (early, late):
        end.settimeout(20)
    one.lock, one.pid, one.served = threading.Lock(), os.getpid(), False
    one.process = SimpleNamespace(
        kill=lambda: done.append("kill"), wait=lambda: done.append("wait")
    )
    one.errors, one.words, one.reading = anonymous_file(), "", threading.Lock()
    one.close = weakref.finalize(one, os.close, one.errors)
    yield one, early, late, done
    for end in (one.early, one.late, early, late):
        if end:
            end.close()
    one.close()


def test_the_first_generation_is_told_to_retire_before_the_notebook_hangs_up(by_hand):
    """Otherwise it would take its ranks with it."""
    one, early, late, _ = by_hand
    one.remember(Path("/a/b"))  # of the second, which ends with the notebook
    one.retire_early()
    one.retire_early()
    assert one.early is None
    assert [early.recv(100), early.recv(100)] == [b"retire\n", b""]
    assert late.recv(100) == b"folder /a/b\n"


def test_clusters_go_to_the_first_generation_until_the_second_is_ready(by_hand):
    one, early, late, _ = by_hand
    one.connect().close()
    late.sendall(b"ready\n")
    cluster = one.connect()
    for end, expected in ((early, [b"\n", b"retire\n", b""]), (late, [b"\n"])):
        for words in expected:
            text, fds, _, _ = socket.recv_fds(end, 100, 1)
            assert (text, len(fds)) == (words, words == b"\n")
            for fd in fds:
                with socket.socket(fileno=fd) as there:
                    last = there.recv(1, socket.MSG_DONTWAIT) if end is early else there.send(b"x")
    assert last == 1
    assert cluster.recv(1) == b"x"  # its other end
    cluster.close()


def test_without_the_first_generation_the_second_serves(by_hand):
    """Even before it has sent that it is ready."""
    one, early, late, _ = by_hand
    early.close()
    with one.connect() as cluster:
        text, [fd], _, _ = socket.recv_fds(late, 100, 1)
        with socket.socket(fileno=fd) as there:
            there.send(b"x")
        assert (text, cluster.recv(1)) == (b"\n", b"x")
    assert one.early is None


@pytest.mark.parametrize(
    ("mine", "retired", "expected"),
    [(True, False, ["kill", "wait"]), (True, True, ["wait"]), (False, False, [])],
)
def test_only_its_own_notebook_ends_the_server(by_hand, mine, retired, expected):
    """A second generation that still imports is killed: it would hear late."""
    one, early, late, done = by_hand
    one.pid += not mine
    if retired:
        one.early.close()
        one.early = None
    os.write(one.errors, b"last words\n")
    one.stop()
    assert done == expected
    for end in (late,) if retired else (early, late):
        assert b"".join(iter(lambda end=end: end.recv(100), b"")) == b"end\n" * mine
    assert one.last_words() == "last words"  # for clusters that have not noticed yet
    assert one.close.alive != mine
