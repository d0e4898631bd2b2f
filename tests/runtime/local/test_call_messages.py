"""What a call does with each thing that it hears, and when it ends; the ranks are this test."""

import os
import time
from types import SimpleNamespace

import pytest

from helpers.runtime.failure import WorkerError
from helpers.runtime.local import call
from helpers.runtime.local.channel import Channel
from helpers.runtime.local.deadlock import prove
from tests.runtime.local.test_call import alone, fails
from tests.runtime.local.test_deadlock import MISMATCH

__all__ = ["alone"]


def say(alone, rank, *message):
    Channel(alone.processes.ranks[rank]._channel).send(*message)
    alone.hear(5)


def test_every_kind_of_message_is_kept_with_its_rank(alone):
    moves, points = [], []
    alone.screen.progress = lambda *move: moves.append(move)
    alone.screen.point = points.append
    alone.processes.later = False
    ranks = alone.processes.ranks
    assert alone.console.on_folder is alone.processes.server.remember
    say(alone, 1, "joined")
    assert [rank.joined for rank in ranks] == [False, True]
    say(alone, 1, "track", "steps", 3, None)
    assert moves == [(1, "steps", 3, None)]
    say(alone, 1, "changed", ["b.py", "a.py"])
    say(alone, 0, "changed", ["a.py", "c.py"])
    assert list(alone.changed) == ["b.py", "a.py", "c.py"]
    assert not alone.processes.later
    say(alone, 0, "later")
    assert alone.processes.later
    say(alone, 1, "log", 0.5, {"x": 1})
    alone.rows.left_out = 1  # there is no room any more
    say(alone, 1, "log", 0.6, {"x": 2})
    assert points == alone.rows.kept == [{"rank": 1, "x": 1, "seconds": 0.5}]


def test_what_has_ended_is_no_longer_listened_to(alone):
    """Its end would be news for ever."""
    process = alone.processes.ranks[1]
    there = len(alone.selector.get_map())
    process._channel.shutdown(2)
    alone.hear(5)
    assert len(alone.selector.get_map()) == there - 1
    os.write(alone.processes.ranks[0]._stacks, b"File 1\n")
    alone.hear(5)
    os.write(alone.processes.ranks[0]._stacks, b"File 2\n")
    alone.hear(5)
    assert alone.stacks == {0: "File 1\nFile 2\n"}
    assert len(alone.selector.get_map()) == there - 1


@pytest.mark.parametrize("silent", [True, False])
def test_without_a_sign_of_life_the_call_hangs(alone, monkeypatch, silent):
    monkeypatch.setattr(call, "STACK_SECONDS", 0.0)
    alone.results = {1: None}
    alone.last_sign = time.monotonic() - (30 if silent else -30)
    draws = []

    def draw():
        draws.append(True)
        if len(draws) > 2:
            alone.results[0] = None  # at last

    alone.screen.draw = draw
    if not silent:
        return alone.wait(0.01)
    with pytest.raises(WorkerError, match=r"no sign of life from any rank for 20 s") as caught:
        alone.wait(20)
    assert "rank 1 was done" in str(caught.value)
    assert alone.signalled == [[0]]


def test_a_hang_that_is_proved_ends_the_call(alone, monkeypatch):
    monkeypatch.setattr(call, "STACK_SECONDS", 0.0)
    returned = []
    alone.results = {1: None}
    alone.looks.prove = lambda over: returned.append(over) or prove(MISMATCH, set())
    with pytest.raises(WorkerError, match=r"^a hang: rank 0 waits in all_reduce") as caught:
        alone.wait(None)
    assert caught.value.kind == "hang"
    assert returned == [{1}]
    assert alone.signalled == [[0]]


@pytest.mark.parametrize(("message", "pause"), [("so", "SETTLE"), ("reset by peer", "COMPLAINT")])
def test_how_long_others_are_waited_for(alone, monkeypatch, message, pause):
    """After a complaint longer: its cause may still be told. A later cause shortens the wait."""
    now = [100.0]
    monkeypatch.setattr(call.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(alone, "ask_for_stacks", lambda: None)
    rounds = []

    def hear(pause):
        now[0] += 0.01
        rounds.append(pause)
        assert len(rounds) < 300
        if len(rounds) == 5:
            alone.failures = {1: fails(1, message)}
        if len(rounds) == 8 and message == "so":
            alone.processes.ranks[1].status = 1

    alone.hear, alone.screen.draw = hear, lambda: None
    alone.looks.prove = lambda over: {}
    with pytest.raises(WorkerError):
        alone.wait(None)
    waited = 0.01 * (len(rounds) - 5)
    assert waited == pytest.approx({"SETTLE": 0.1, "COMPLAINT": 1.0}[pause], abs=0.011)
    assert rounds[:4] == [0.25] * 4
    assert set(rounds[5:]) == {0.05}


def test_a_cause_shortens_the_wait_that_a_complaint_has_begun(alone, monkeypatch):
    """And a complaint after a cause does not make it longer."""
    alone.processes.ranks = [*alone.processes.ranks, SimpleNamespace(rank=2)]
    now, heard = [100.0], []
    monkeypatch.setattr(call.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(alone, "ask_for_stacks", lambda: None)
    monkeypatch.setattr(alone.screen, "draw", lambda: None)
    for first, second, waited in (("reset by peer", "so", 0.25), ("so", "reset by peer", 0.1)):
        told = {0: fails(0, first)}, {1: fails(1, second)}
        alone.failures, begun = dict(told[0]), now[0]

        def hear(pause, begun=begun, second=told[1]):
            now[0] += 0.01
            heard.append(pause)
            assert len(heard) < 300
            if now[0] > begun + 0.145:
                alone.failures |= second

        alone.hear = hear
        with pytest.raises(WorkerError, match="raised ValueError: so"):
            alone.wait(None)
        assert now[0] - begun == pytest.approx(waited, abs=0.021)


@pytest.mark.parametrize(("timeout", "pause"), [(None, 0.25), (120, 0.5), (0.4, 0.1)])
def test_how_long_a_look_at_the_ranks_may_take(alone, timeout, pause):
    pauses = []

    def hear(seconds):
        pauses.append(seconds)
        alone.results = {0: None, 1: None}

    alone.hear = hear
    alone.wait(timeout)
    assert pauses == [pytest.approx(pause), 0]


def test_an_output_that_has_ended_is_no_longer_listened_to(alone):
    there = len(alone.selector.get_map())
    for process in alone.processes.ranks:
        os.close(process._stderr)
        process._stderr = os.open(os.devnull, os.O_WRONLY)
        alone.hear(5)
    assert len(alone.selector.get_map()) == there - 2


def test_the_end_of_a_rank_is_a_sign_of_life(alone):
    """The others get as long as after any other sign."""
    alone.last_sign = alone.looks.due = 0.0
    process = alone.processes.ranks[0]
    process.status, process.joined = 3, True
    alone.hear_server()
    assert alone.last_sign > 0
    assert alone.looks.due > 0
    assert alone.failures[0].headline() == "rank 0 ended with exit code 3 before it returned"


def test_the_stacks_are_complete_after_a_pause(alone):
    """Of every rank that was asked, also if one writes in two parts."""
    parts = {0: [b"one\n", b"two\n"], 1: [b"other\n"]}

    def hear(pause):
        for rank, texts in parts.items():
            if texts:
                alone.stacks[rank] = alone.stacks.get(rank, "") + texts.pop(0).decode()
        heard.append(pause)

    heard, alone.hear = [], hear
    began = time.monotonic()
    alone.ask_for_stacks()
    assert alone.stacks == {0: "one\ntwo\n", 1: "other\n"}
    assert heard == [call.STACK_QUIET] * 3
    alone.stacks = {0: "only one of two"}
    parts[1] = []
    alone.ask_for_stacks()
    assert time.monotonic() - began > call.STACK_SECONDS
    assert alone.signalled == [[0, 1], [0, 1]]


def test_an_end_is_no_news_after_an_answer(alone):
    for alone.results, alone.failures in (({0: None}, {}), ({}, {0: fails(0)})):
        before = dict(alone.failures)
        alone.processes.ranks[0].status = 1
        assert alone.hear_server()
        assert alone.failures == before


def test_ranks_that_leave_are_heard_until_they_are_gone(alone):
    pauses = []

    def hear(pause):
        pauses.append(pause)
        if len(pauses) == 3:
            for process in alone.processes.ranks:
                process.status = 0

    alone.hear = hear
    alone.farewell(60)
    assert pauses == [0.05] * 3
    alone.processes.ranks[1].status = None
    alone.hear = time.sleep
    alone.farewell(0.1)  # an end all the same


def test_a_call_that_is_closed_shows_what_is_left(alone, capsys):
    os.write(alone.processes.ranks[1]._stdout, b"no end of the line")
    alone.hear(5)
    finished = []
    alone.screen.finish = lambda: finished.append(True)
    alone.rows.left_out = 3
    alone.close()
    said = capsys.readouterr().out
    assert "[rank 1] no end of the line\n" in said
    assert "the last 3 rows are left out" in said
    assert finished == [True]
    assert alone.selector.get_map() is None  # its descriptor is closed
    alone.rows.left_out = 0
