"""The notebook's words to its server, on lines of which this test has the other ends."""

import os
import socket
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.runtime.failure import CannotStart
from helpers.runtime.local import client
from helpers.runtime.local.client import Server
from tests.runtime.local.test_client import no_server

__all__ = ["no_server"]


@pytest.fixture
def by_hand():
    """A server whose ends of the two lines this test has; its process notes what happens to it."""
    one, done = object.__new__(Server), []
    (one.early, early), (one.late, late) = socket.socketpair(), socket.socketpair()
    for end in (early, late):
        end.settimeout(20)
    one.lock, one.pid, one.words, one.served = threading.Lock(), os.getpid(), "", False
    one.process = SimpleNamespace(
        kill=lambda: done.append("kill"), wait=lambda: done.append("wait")
    )
    one.errors = tempfile.TemporaryFile()  # noqa: SIM115
    yield one, early, late, done
    for end in (one.early, one.late, early, late):
        if end:
            end.close()
    one.errors.close()


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
    os.write(one.errors.fileno(), b"last words\n")
    one.stop()
    assert done == expected
    for end in (late,) if retired else (early, late):
        assert b"".join(iter(lambda end=end: end.recv(100), b"")) == b"end\n" * mine
    assert one.last_words() == "last words"
    assert one.errors.closed


def test_a_server_that_is_not_usable_is_stopped_and_replaced(no_server, monkeypatch):
    made, stopped = [], []

    class Made:
        def __init__(self):
            made.append(self)
            self.alive = True

        def usable(self):
            return self.alive

        def stop(self):
            stopped.append(self)

    monkeypatch.setattr(client, "Server", Made)
    first = client.warm()
    assert client.warm() is first
    first.alive = False
    second = client.warm()
    assert (made, stopped) == ([first, second], [first])
    second.alive = False

    def refused():
        raise CannotStart("no memory")

    monkeypatch.setattr(client, "Server", refused)
    with pytest.raises(CannotStart):
        client.warm()
    assert client._server is None  # the next call tries again
    assert stopped == [first, second]
