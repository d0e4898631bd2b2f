"""What ranks leave behind ends with them, wherever it has hidden."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local.forkserver import client
from helpers.runtime.local.forkserver import orphans as module
from helpers.runtime.local.forkserver.orphans import Orphans, children

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux hands orphans over")
SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids, seconds=10.0) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def hide(worker):
    """A process in a session of its own, and one whose parent is gone: a daemon."""
    first = subprocess.Popen(SLEEP, start_new_session=True).pid
    reading, writing = os.pipe()
    if (middle := os.fork()) == 0:
        os.setsid()
        child = subprocess.Popen(SLEEP, start_new_session=True)
        os.write(writing, str(child.pid).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    return [first, int(os.read(reading, 20))]


def test_a_rank_s_session_ends_with_its_children():
    script = "sleep 300 & echo $!; exec sleep 300"
    first = subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    second = int(first.stdout.readline())
    module.kill_group(first.pid)
    assert first.wait(60) == -signal.SIGKILL
    assert gone([second])
    first.stdout.close()
    module.kill_group(first.pid)  # there is none any more


@linux
def test_after_a_failure(tmp_path):
    def fail(worker):
        Path(tmp_path, str(worker.rank)).write_text(" ".join(map(str, hide(worker))))
        raise ValueError("so")

    with pytest.raises(WorkerError):
        launch(fail, workers=1)
    launch(lambda worker: None, workers=1)
    assert gone(list(map(int, Path(tmp_path, "0").read_text().split())))


@linux
def test_what_a_rank_left_in_shared_memory_is_removed():
    """By multiprocessing's own process, which must live long enough to do it."""

    def leave(worker):
        from multiprocessing.shared_memory import SharedMemory

        return SharedMemory(create=True, size=100).name

    # A server of its own: one that has used "spawn" has such a process for all its ranks.
    current, client._server = client._server, None
    try:
        (name,) = launch(leave, workers=1)
        client._server.stop()
    finally:
        client._server = current
    until = time.monotonic() + 10
    while Path("/dev/shm", name).exists():
        assert time.monotonic() < until
        time.sleep(0.05)


@linux
def test_children_are_listed(monkeypatch):
    before = children()
    with subprocess.Popen(SLEEP) as child:
        assert set(children()) - set(before) == {child.pid}
        child.kill()
    monkeypatch.setattr(os, "getpid", lambda: 0)  # where the system has no such list
    assert children() == []


@linux
def test_what_is_killed_and_what_is_spared():
    """In a fork, whose children are those of this test alone."""

    def judge():
        signal.alarm(30)  # no wait for a child that lives
        orphan, rank, elder = (subprocess.Popen(SLEEP).pid for _ in range(3))
        orphans = Orphans(spare=elder)
        orphans.end({rank: "a rank"})
        assert orphans.known == {orphan}
        until = time.monotonic() + 20
        while orphans.known:  # the server stays until none is left
            assert time.monotonic() < until
            time.sleep(0.01)
            orphans.end({rank: "a rank"})
        assert set(children()) == {rank, elder}  # no zombie either
        assert alive(rank)
        assert alive(elder)

    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            judge()
            os.write(writing, b"right")
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            for pid in children():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1000) == b"right"
    os.close(reading)
    os.close(writing)


def test_where_no_children_are_listed_a_rank_s_own_session_ends_with_it(monkeypatch):
    monkeypatch.setattr(module, "LISTED", False)
    monkeypatch.setattr(module, "become_subreaper", lambda: None)
    monkeypatch.setattr(module, "children", list)
    ranks = [subprocess.Popen(SLEEP, start_new_session=True) for _ in range(2)]
    orphans = Orphans()
    orphans.end({ranks[0].pid: ranks[0]}, ended=ranks[1:])
    assert ranks[1].wait(20) == -signal.SIGKILL
    assert ranks[0].poll() is None
    orphans.end({}, ended=ranks)  # one of them is gone, and that is no error
    assert ranks[0].wait(20) == -signal.SIGKILL
    monkeypatch.setattr(module, "LISTED", True)
    with subprocess.Popen(SLEEP, start_new_session=True) as other:
        orphans.end({}, ended=[other])  # the list is what counts here
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.1)
        other.kill()


def test_only_multiprocessing_s_own_process_is_a_tracker():
    program = "import time; time.sleep(300)  # from multiprocessing.resource_tracker import main"
    for code, tracker in ((program, True), (program.replace("resource_tracker", "pool"), False)):
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            until = time.monotonic() + 20
            while b"time.sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                assert time.monotonic() < until  # until the child has become this program
            assert module.is_tracker(process.pid) == tracker
            process.kill()
    assert not module.is_tracker(process.pid)  # it is gone
