"""A rank's thread that answers: over a real line, beside the main thread of this process."""

import socket
import threading
import weakref

import pytest
import torch.distributed as dist

from helpers.runtime.local import listener
from helpers.runtime.local.channel import Channel
from helpers.runtime.local.whereabouts import Answer


@pytest.fixture
def line():
    here, there = map(Channel, socket.socketpair())
    thread = threading.Thread(target=listener.answer, args=(there,))
    thread.start()
    yield here
    here.close()
    thread.join(30)
    there.close()
    assert not thread.is_alive()  # it ends once the notebook hangs up


def ask(line, *message):
    line.socket.settimeout(20)
    line.send(*message)
    return line.receive()[0]


def test_every_look_is_by_the_same_observer(line, monkeypatch):
    """It compares what it sees with an earlier look."""
    made = []

    class Counter:
        looks = 0

        def look(self, group):
            self.looks += 1
            return Answer("running", issued={str(group): {self.looks: "barrier"}})

    monkeypatch.setattr(listener, "start_observer", lambda: made.append(Counter()) or made[-1])
    monkeypatch.setattr(listener, "_group", None)
    seen = [ask(line, "look")[0].issued for _ in range(3)]
    assert seen == [{"None": {n: "barrier"}} for n in (1, 2, 3)]
    assert len(made) == 1


def test_the_group_that_the_ranks_first_formed_is_the_one_looked_at(line, monkeypatch):
    class Group:
        pass

    first, groups, before = Group(), [], dist.group.WORLD
    monkeypatch.setattr(listener, "_group", None)
    dist.group.WORLD = first
    try:
        listener.joined()
    finally:
        dist.group.WORLD = before
    assert isinstance(listener._group, weakref.ref)
    observer = type("Seen", (), {"look": lambda _, group: groups.append(group) or "seen"})
    monkeypatch.setattr(listener, "start_observer", observer)
    assert ask(line, "look") == ("seen",)
    assert groups == [first]


def test_a_debugger_that_fails_is_answered_too_and_the_next_command_works(line, monkeypatch):
    made = []

    def answer(self, command):
        if command == "fail":
            raise KeyError("in the debugger")
        return f"{command}: done"

    fails = type("Fails", (), {"answer": answer})
    monkeypatch.setattr(listener, "start_debugger", lambda: made.append(fails()) or made[-1])
    assert ask(line, "debug", "where") == ("where: done",)
    (text,) = ask(line, "debug", "fail")
    assert "KeyError: 'in the debugger'" in text
    assert ask(line, "debug", "up") == ("up: done",)
    assert len(made) == 1  # it knows where it is in the stack


def test_the_frames_of_a_failure_are_kept_for_the_debugger(monkeypatch):
    monkeypatch.setattr(listener, "_trace", None)
    try:
        secret = 42
        raise ValueError("mine")
    except ValueError as error:
        listener.remember(error)
    debugger = listener.start_debugger()
    assert debugger.stack[-1][0].f_locals["secret"] == secret
