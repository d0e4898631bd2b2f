"""What a rank's watch reads and writes in the store; `test_watch_machines` has whole ranks."""

import json
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from helpers.runtime.joined import heartbeat as watch
from helpers.runtime.joined.heartbeat import OK, Watch


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(watch, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(watch, "GRACE_SECONDS", 60.0)  # then the process would end
    return dist.HashStore()


def watch_of(store, rank=0, world=3, silence=None):
    return Watch((store, store, store), rank, world, silence)


@contextmanager
def running(watched, part):
    """One of its threads, until the end of the block."""
    thread = threading.Thread(target=part)
    thread.start()
    try:
        yield
    finally:
        watched.over.set()
        thread.join(60)
    assert not thread.is_alive()


def outcome(store):
    return json.loads(store.get("outcome")) if store.check(["outcome"]) else None


def until(true):
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_first_report_counts_and_what_is_decided_stays(store):
    watch_of(store, 1).failed({"rank": 1})
    watch_of(store, 0).failed({"rank": 0})
    watch_of(store, 2).finished()
    assert outcome(store) == {"rank": 1}
    one = watch_of(store)
    one.decide(OK)
    one.decide({"rank": 2})
    assert one.wait() == OK


def test_all_is_well_once_the_last_rank_has_returned(store):
    ranks = [watch_of(store, rank) for rank in range(3)]
    for rank in ranks[:2]:
        rank.finished()
    assert outcome(store) is None
    ranks[2].finished()
    assert store.get("outcome").decode() == OK
    with running(ranks[0], ranks[0].hear):
        assert ranks[0].wait() == OK


def test_a_failure_is_heard_and_told(store, capsys):
    heard = watch_of(store, 2)
    with running(heard, heard.hear):
        watch_of(store, 0).failed({"rank": 0, "headline": "rank 0 raised"})
        assert heard.wait()["rank"] == 0
        until(
            lambda: (
                heard.outcome and capsys.readouterr().err == "[rank 2] stopping: rank 0 raised\n"
            )
        )


def test_the_next_rank_is_lost_when_its_beats_end(store, monkeypatch):
    """In the ring: after the last rank comes rank 0. The test moves the clock itself."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(watch, "time", clock)
    last = watch_of(store, rank=2, silence=20.0)
    store.add("beat/0", 1)

    def looks_again(own=0):
        until(lambda: int(store.get("beat/2")) > own + 1 if own else store.check(["beat/2"]))
        return int(store.get("beat/2"))

    with running(last, last.beat):
        own = looks_again(looks_again())
        for clock.now in (15.0, 30.0):  # longer than the silence, but it lives
            store.add("beat/0", 1)
            own = looks_again(own)
        clock.now = 49.0
        looks_again(own)
        assert outcome(store) is None
        clock.now = 51.0
        until(lambda: outcome(store))
    said = outcome(store)
    assert (said["rank"], said["kind"]) == (0, "died")
    assert said["headline"] == "rank 0: no sign of life for 20 s: is its machine gone?"


@pytest.mark.parametrize(("silence", "beats"), [(None, 1), (0.05, 0)])
def test_no_rank_is_lost_without_a_limit_or_before_its_first_beat(store, silence, beats):
    first = watch_of(store, silence=silence)
    if beats:
        store.add("beat/1", beats)
    with running(first, first.beat):
        until(lambda: store.check(["beat/0"]) and int(store.get("beat/0")) > 20)
        assert outcome(store) is None


@pytest.mark.parametrize(("waited", "lost"), [(1700.0, False), (1900.0, True)])
def test_a_rank_may_load_data_for_half_an_hour_before_its_first_beat(
    store, monkeypatch, waited, lost
):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(watch, "time", clock)
    first = watch_of(store, silence=20.0)
    with running(first, first.beat):
        until(lambda: store.check(["beat/0"]))
        clock.now, there = waited, int(store.get("beat/0"))
        until(lambda: outcome(store) or int(store.get("beat/0")) > there + 2)
    assert (outcome(store) is not None) == lost


def test_a_store_that_does_not_answer_ends_the_call(store):
    one = watch_of(store, silence=0.1)
    one.returned.set()  # the call itself raises the error
    with running(one, one.guard):
        for _ in range(10):
            time.sleep(0.03)
            one.answered = time.monotonic()
        assert one.outcome is None
        assert one.wait()["headline"].startswith("no answer for 0.1 s from where the ranks meet")
    watch_of(store, silence=None).guard()  # without a limit there is nothing to guard


class Gone(dist.HashStore):
    """A store whose process has ended."""

    def fail(self, *_):
        raise RuntimeError("Connection reset by peer\nand a long stack")

    add = check = compare_set = wait = fail


def test_each_failure_is_decided_here_if_the_store_is_gone(store):
    one, report = watch_of(Gone()), {"rank": 0, "headline": "rank 0 raised"}
    one.failed(report)
    assert (one.outcome, one.decided.is_set(), one.returned.is_set()) == (report, True, True)


def test_a_store_that_is_gone_ends_the_call_and_no_rank_is_lost(store, capsys):
    one = watch_of(Gone(), silence=0.01)
    with running(one, one.hear):
        until(lambda: one.decided.is_set())
        until(lambda: "stopping" in capsys.readouterr().err)
    what = "the process that keeps the ranks together is gone (Connection reset by peer)"
    assert one.outcome == {"rank": None, "kind": "server", "headline": what, "traceback": ""}
    other = watch_of(Gone(), silence=0.01)
    other.beat()  # it ends without a word: the other thread reports it
    assert other.outcome is None


def test_a_rank_without_its_launcher_is_lost_itself(store, monkeypatch):
    one = watch_of(store, rank=1)
    one.parent += 1
    monkeypatch.setattr(watch.socket, "gethostname", lambda: "node7")
    with running(one, one.beat):
        until(lambda: outcome(store))
    told = outcome(store)
    assert (told["rank"], told["kind"]) == (1, "died")
    assert told["headline"] == "rank 1: the process that started it on node7 is gone: killed?"
    assert not one.returned.is_set()  # its function still runs


def test_each_beat_shows_that_the_store_answers(store):
    one = watch_of(store)
    one.answered = 0.0
    with running(one, one.beat):
        until(lambda: one.answered)


def test_a_rank_shows_at_once_that_it_lives_and_listens_until_the_end(store, monkeypatch):
    monkeypatch.setattr(watch, "BEAT_SECONDS", 30.0)
    with watch_of(store, rank=2, silence=30.0) as one:
        assert store.check(["beat/2"])
        names = {"helpers-hear", "helpers-beat", "helpers-guard"}
        threads = [thread for thread in threading.enumerate() if thread.name in names]
        assert {thread.name for thread in threads} == names
        assert all(thread.daemon for thread in threads)  # a script that fails can end
        for _ in range(3):
            one.finished()
    assert one.over.is_set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_rank_that_has_returned_says_nothing_and_a_good_end_stops_nobody(store, capsys):
    one = watch_of(store)
    one.outcome = OK
    one.stop()
    one.outcome = {"headline": "rank 1 raised"}
    one.returned.set()
    one.over.set()
    one.stop()
    assert capsys.readouterr().err == ""


def test_a_rank_that_does_not_end_by_itself_is_ended(store, monkeypatch):
    ended = []
    monkeypatch.setattr(watch, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(watch.os, "_exit", ended.append)
    one = watch_of(store)
    one.outcome = {"headline": "rank 1 raised"}
    one.stop()
    assert ended == [1]
