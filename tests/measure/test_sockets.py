"""The kernel counts bytes sent, on the test's own connections."""

import os
import select
import socket
import struct
import sys

import pytest

from helpers.measure.sockets import SentBytes, looped, passed_on, sent_by_connection

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO of Linux")


@pytest.fixture
def pair(request):
    """Both ends of a TCP connection. An epoll loop serves the first end."""
    host = getattr(request, "param", "127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"no addresses of this kind here: {error}")
    with server:
        one = socket.create_connection(server.getsockname()[:2])
        other, _ = server.accept()
    with one, other, select.epoll() as loop:
        loop.register(one, select.EPOLLIN)
        yield one, other, loop


@pytest.mark.parametrize("pair", ["127.0.0.1", "::1"], indirect=True)
def test_bytes_sent_since(pair):
    one, other, _ = pair
    one.sendall(b"x" * 100)
    count = SentBytes()
    assert count.read() == 0
    one.sendall(b"x" * 1234)
    assert count.read() == 1234
    other.sendall(b"x" * 5000)  # received bytes do not count, and no loop serves that end
    assert count.read() == 1234


def test_each_loop_of_the_process_counts(pair):
    """One before and one after it, in the order of their descriptors, watch other things."""
    one, other, _ = pair
    count = SentBytes()
    one.sendall(b"x" * 10)
    other.sendall(b"x" * 700)
    assert count.read() == 10
    with select.epoll() as second:
        second.register(other, select.EPOLLIN)
        assert {one.fileno(), other.fileno()} <= looped()  # an earlier test may have left a loop
    assert one.fileno() in looped()
    assert other.fileno() not in looped()


def test_counting_leaves_no_descriptor_open(pair):
    one, _, loop = pair
    read, write = os.pipe()  # gloo's loop watches descriptors that are no sockets
    loop.register(read, select.EPOLLIN)
    before = len(os.listdir("/proc/self/fd"))
    one.sendall(b"x")
    for _ in range(3):
        assert sent_by_connection()
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(read)
    os.close(write)


def test_bytes_that_wait_in_the_kernel_count(pair):
    one, _, _ = pair
    count = SentBytes()
    one.setblocking(False)
    taken = 0
    try:
        while True:
            taken += one.send(b"x" * 65536)  # the other end does not read, so both buffers fill
    except BlockingIOError:
        pass
    assert count.read() == taken


def test_a_connection_made_later_counts_from_its_start(pair):
    one, other, loop = pair
    loop.unregister(one)
    count = SentBytes()
    other.sendall(b"x" * 10)
    loop.register(other, select.EPOLLIN)
    assert count.read() == 10


def test_a_store_is_left_out(pair):
    one, other, _ = pair
    for port in (one.getsockname()[1], other.getsockname()[1]):
        count = SentBytes(without_ports=[port])
        one.sendall(b"x" * 10)
        assert count.read() == 0


def test_only_connections_of_a_loop(pair):
    one, _, loop = pair
    before = sent_by_connection()
    loop.unregister(one)
    assert len(sent_by_connection()) == len(before) - 1


def test_elsewhere_it_is_unknown(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert SentBytes().read() is None


def test_an_older_kernel_has_no_counters(pair, monkeypatch):
    count = SentBytes()
    monkeypatch.setattr("helpers.measure.sockets.ENOUGH", 10_000)
    assert sent_by_connection() is None
    assert count.read() is None
    assert SentBytes().read() is None


def test_bytes_sent_again_count_once():
    """Linux, include/uapi/linux/tcp.h: 64 bits of bytes sent, then 64 of bytes sent again."""
    info = bytearray(256)
    struct.pack_into("<QQ", info, 200, 1000, 30)
    struct.pack_into("<I", info, 144, 7)
    assert passed_on(bytes(info)) == 977
