"""Messages over a socket pair."""

import os
import pickle
import socket
import threading
import time

import pytest

from helpers.runtime.local import channel
from helpers.runtime.local.channel import Channel, ready
from helpers.runtime.private import anonymous_file


@pytest.fixture
def pair():
    ends = [Channel(end) for end in socket.socketpair()]
    yield ends
    for end in ends:
        end.close()


def test_messages_arrive_whole_and_in_order(pair):
    here, there = pair
    here.send("one", 1)
    here.post("two", {"x": 2})
    here.send("three", "y" * 1000)
    got = [there.receive()[0] for _ in range(3)]
    assert got == [("one", 1), ("two", {"x": 2}), ("three", "y" * 1000)]


def test_a_descriptor_comes_with_its_own_message(pair):
    here, there = pair
    fds = [anonymous_file(), anonymous_file()]
    for fd, text in zip(fds, (b"first", b"second"), strict=True):
        os.write(fd, text)
    here.send("a", fd=fds[0])
    here.send("b")
    here.send("c", fd=fds[1])
    for fd in fds:
        os.close(fd)
    got = [there.receive() for _ in range(3)]
    assert [message for message, _ in got] == [("a",), ("b",), ("c",)]
    assert got[1][1] is None
    for (_, fd), text in zip(got[::2], (b"first", b"second"), strict=True):
        assert os.pread(fd, 100, 0) == text
        os.close(fd)


def test_descriptors_that_nobody_took_are_closed(pair):
    here, there = pair
    fd = anonymous_file()
    here.send("a", fd=fd)
    os.close(fd)
    there.fill()
    before = len(os.listdir("/proc/self/fd"))
    there.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2  # its socket and the descriptor


def test_posting_never_waits_and_loses_nothing(pair):
    here, there = pair
    count = 50_000  # far more than the socket holds
    for i in range(count):
        here.post("log", i)
    assert here.waiting
    thread = threading.Thread(target=here.send, args=("end",))  # takes what waits along
    thread.start()
    got = []
    while (message := there.receive()[0]) != ("end",):
        got.append(message)
    thread.join()
    assert got == [("log", i) for i in range(count)]


def test_what_was_sent_arrives_after_the_sender_is_gone(pair):
    here, there = pair
    here.send("last words")
    here.close()
    assert there.receive()[0] == ("last words",)
    with pytest.raises(EOFError):
        there.receive()


def test_a_side_that_ends_with_unread_messages_is_gone_too(pair):
    """The system calls that a reset."""
    here, there = pair
    here.send("unread")
    there.close()
    with pytest.raises(EOFError, match="the other side is gone"):
        here.fill()


def test_of_many_sources_those_that_can_be_read_are_told():
    ends = [socket.socketpair() for _ in range(3)]
    for here, _ in ends[1:]:
        here.send(b"x")
    sources = [there for _, there in ends]
    assert ready(sources, 0) == set(sources[1:])
    assert ready([], 0) == set()
    for pair in ends:
        for end in pair:
            end.close()


def test_all_messages_that_have_arrived_whole_come_at_once(pair):
    here, there = pair
    for number in range(3):
        here.send(number)
    body = pickle.dumps(("late",))
    whole = channel.HEADER.pack(len(body), False) + body
    here.socket.sendall(whole[:-1])
    assert list(there.messages()) == [((number,), None) for number in range(3)]
    here.socket.sendall(whole[-1:])
    assert list(there.messages()) == [(("late",), None)]


def test_posts_that_nobody_takes_do_not_fill_memory(pair, monkeypatch):
    """With so much on the way, the next post waits; and all arrive, in order."""
    monkeypatch.setattr(channel, "WAITING", 1_000_000)
    here, there = pair
    most = []

    def post():
        for number in range(100):
            here.post(number, "x" * 100_000)
            most.append(len(here.waiting))
        here.send("end")

    thread = threading.Thread(target=post)
    thread.start()
    while len(most) < 5:  # it goes on without being heard
        time.sleep(0.01)
    thread.join(0.2)
    assert thread.is_alive()
    assert [there.receive()[0][0] for _ in range(101)] == [*range(100), "end"]
    thread.join()
    assert max(most) < 1_200_000
