"""The notebook's hold on its server."""

import os
import signal

import pytest

from helpers.runtime.failure import ServerLost
from helpers.runtime.local import client
from helpers.runtime.local.client import Server, start_method


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


def test_one_server_for_all(server):
    assert client.warm() is client.warm()
    assert client.warm().usable()


def test_a_server_that_was_killed_is_told_from_one_that_lives(server):
    assert server.usable()
    server.process.kill()
    server.process.wait()
    assert not server.usable()
    with pytest.raises(ServerLost, match="is gone"):
        server.connect()


def test_what_it_wrote_last_is_told(server):
    server.process.send_signal(signal.SIGSTOP)
    os.write(server.errors.fileno(), b"no memory left\n")
    server.process.kill()
    server.process.wait()
    with pytest.raises(ServerLost, match="no memory left"):
        server.connect()


def test_stopping_waits_until_it_is_gone():
    server = Server()
    server.stop()
    assert server.process.poll() is not None


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
