"""Does a process do something, as the kernel of the operating system sees it?"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from helpers.runtime.local.hangs import quiet
from helpers.runtime.local.hangs.quiet import thread_times, traffic

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


@pytest.fixture
def connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        with here, server.accept()[0] as there:
            yield here, there


def test_bytes_that_arrive_show(connected):
    here, there = connected
    before = traffic()
    assert before == traffic()
    here.sendall(b"12345")
    assert there.recv(5) == b"12345"
    time.sleep(0.2)  # for the acknowledgement
    after = traffic()
    assert after[there.fileno()][1] == before[there.fileno()][1] + 5
    assert after[here.fileno()][0] == before[here.fileno()][0] + 5


def test_looking_leaves_no_descriptor_open(connected, tmp_path):
    with open(tmp_path / "file", "w"):
        before = os.listdir("/proc/self/fd")
        for _ in range(3):
            traffic()
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_bytes_that_nobody_has_read_are_on_their_way(connected):
    here, there = connected
    here.sendall(b"1")
    time.sleep(0.1)
    assert traffic() is None
    there.recv(1)
    assert traffic() is not None


def test_bytes_that_another_process_does_not_take_are_on_their_way():
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = (
            "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
        )
        port = str(server.getsockname()[1])
        other = subprocess.Popen(
            [sys.executable, "-c", f"{program}; sys.stdin.read()", port], stdin=-1
        )
        with other, server.accept()[0] as here:
            assert traffic()[here.fileno()] == (0, 0)
            here.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while here.send(bytes(1 << 16)):
                    pass
            time.sleep(0.2)
            found = traffic()
            other.kill()
    assert found is None


def test_a_thread_that_ran_shows():
    go, done, end = threading.Event(), threading.Event(), threading.Event()

    def work():
        go.wait()
        sum(range(100_000))
        done.set()
        end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    name = str(thread.native_id)
    time.sleep(0.1)
    before = thread_times()[name]
    go.set()
    done.wait()
    time.sleep(0.1)
    assert thread_times()[name] != before
    end.set()
    thread.join()


@pytest.mark.parametrize("state", "SIRDTtZX")
@pytest.mark.parametrize("name", ["python", "a b) R (c", quiet.GLOO_LOOP])
def test_only_a_thread_that_sleeps_waits(monkeypatch, state, name):
    """A thread in a wait for the disk (D) goes on by itself; a name may hold brackets.

    gloo's thread wakes every 10 ms, and does not count.
    """
    files = {"comm": f"{name}\n", "stat": f"7 ({name}) {state} 1 2", "schedstat": "5 6 7\n"}
    monkeypatch.setattr(quiet, "read", lambda thread, file: files[file])
    monkeypatch.setattr(os, "listdir", lambda path: ["7", str(threading.get_native_id())])
    waits = {} if name == quiet.GLOO_LOOP else {"7": "5 6 7\n"}
    assert thread_times() == (waits if state in "SI" or not waits else None)


@pytest.mark.parametrize(
    ("threads", "moved", "expected"),
    [({}, {3: (0, 0)}, ({}, {3: (0, 0)})), (None, {3: (0, 0)}, None), ({"1": "2"}, None, None)],
)
def test_what_is_not_known_is_no_quiet(monkeypatch, threads, moved, expected):
    monkeypatch.setattr(quiet, "thread_times", lambda: threads)
    monkeypatch.setattr(quiet, "traffic", lambda: moved)
    assert quiet.activity() == expected


def test_only_connections_of_the_network_count():
    """Without one, it is not known what gloo does."""
    program = (
        "import socket\nfrom helpers.runtime.local.hangs.quiet import traffic\n"
        "pair = socket.socketpair()\npair[0].send(b'x')\nprint(traffic())\n"
        "alone = socket.socket()\nprint(traffic() == {alone.fileno(): (0, 0)})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "None\nTrue\n", done.stderr
