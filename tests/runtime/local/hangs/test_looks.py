"""When ranks are asked where they are, and which answers count. The other ends are in this test."""

import socket
import time
from types import SimpleNamespace

import pytest

from helpers.runtime.local.channel import Channel, readable
from helpers.runtime.local.hangs import looks as module
from helpers.runtime.local.hangs.looks import Looks
from helpers.runtime.local.hangs.whereabouts import SETTLED_SECONDS
from tests.runtime.local.hangs.test_deadlock import MISMATCH, RETURNED


@pytest.fixture
def two():
    """Two ranks, and for each the end at which it would be asked."""
    ranks, theirs = [], []
    for rank in range(2):
        here, there = map(Channel, socket.socketpair())
        ranks.append(SimpleNamespace(rank=rank, status=None, line=here))
        theirs.append(there)
    yield SimpleNamespace(ranks=ranks), theirs
    for process, there in zip(ranks, theirs, strict=True):
        process.line.close()
        there.close()


def asked(there) -> int:
    """How often a rank was asked since the last time."""
    return len(list(there.messages())) if readable(there) else 0


def answer(looks, theirs, answers):
    for rank, one in answers.items():
        theirs[rank].send(one)
        assert looks.take(looks.processes.ranks[rank])


def test_ranks_are_asked_when_it_is_time_and_again_once_they_have_answered(two, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    processes, theirs = two
    looks = Looks(processes)
    assert looks.prove(set()) == {}
    assert [asked(there) for there in theirs] == [0, 0]
    now[0] += module.QUIET_SECONDS
    assert looks.prove(set()) == {}
    assert [asked(there) for there in theirs] == [1, 1]
    answer(looks, theirs, {0: MISMATCH[0]})
    assert looks.prove(set()) == {}  # rank 1 may still answer
    answer(looks, theirs, {1: MISMATCH[1]})
    assert set(looks.prove(set())) == {0, 1}
    now[0] += module.APART_SECONDS
    assert looks.prove(set()) == {}
    assert [asked(there) for there in theirs] == [1, 1]
    now[0] += 1.5 * module.ANSWER_SECONDS
    assert looks.prove(set()) == {}  # what they said before no longer counts
    answer(looks, theirs, {0: MISMATCH[0]})
    now[0] += module.APART_SECONDS
    assert looks.prove(set()) == {}
    assert [asked(there) for there in theirs] == [1, 0]  # rank 1 still owes an answer


def test_a_sign_of_life_puts_the_look_off(two, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    processes, theirs = two
    looks = Looks(processes)
    now[0] += 0.9 * module.QUIET_SECONDS
    looks.sign_of_life()
    now[0] += 0.9 * module.QUIET_SECONDS
    looks.prove(set())
    assert [asked(there) for there in theirs] == [0, 0]


def test_a_rank_that_never_answers_does_not_hold_up_the_proof(two, monkeypatch):
    """It may be in compiled code that keeps the interpreter's lock."""
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    processes, theirs = two
    third = SimpleNamespace(rank=2, status=None, line=SimpleNamespace(post=lambda _: None))
    processes.ranks = [*processes.ranks, third]
    looks = Looks(processes)
    looks.due = now[0]
    looks.ask()
    answer(looks, theirs, MISMATCH)
    for seconds, proved in ((0.9, set()), (1.1, {0, 1})):
        now[0] = 100.0 + seconds * module.ANSWER_SECONDS
        assert set(looks.prove(set())) == proved


def test_it_counts_which_ranks_have_returned(two):
    processes, theirs = two
    looks = Looks(processes)
    looks.due = time.monotonic() + 1000
    answer(looks, theirs, RETURNED)
    assert looks.prove(set()) == {}
    assert set(looks.prove({1})) == {0}


def test_ended_ranks_are_not_asked_and_their_line_is_no_longer_heard(two):
    processes, theirs = two
    processes.ranks[1].status = 0
    looks = Looks(processes)
    looks.due = 0.0
    looks.prove(set())
    assert [asked(there) for there in theirs] == [1, 0]
    theirs[1].close()
    assert not looks.take(processes.ranks[1])
    processes.ranks[1].status = None  # the news of its end has not come yet
    looks.due = 0.0
    looks.ask()
    assert looks.asked == {0, 1}


def test_a_hang_is_proved_within_seconds():
    """A rank counts as settled at the second look, and the third proves it at the latest."""
    assert SETTLED_SECONDS < module.APART_SECONDS
    assert module.ANSWER_SECONDS < module.APART_SECONDS
    assert module.QUIET_SECONDS + 3 * module.APART_SECONDS <= 5
