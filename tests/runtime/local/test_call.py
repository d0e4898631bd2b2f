"""One call, from the first sign of life to the last: what is heard, and whom it blames."""

import gc
import os
import socket
import sys
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.failure import Failure, WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local import call
from helpers.runtime.local.channel import Channel
from helpers.runtime.local.forkserver.processes import RankProcess
from helpers.runtime.local.hangs.deadlock import prove
from helpers.runtime.payload import Parcel, pack
from helpers.runtime.private import anonymous_file
from tests.runtime.local.hangs.test_deadlock import MISMATCH


@pytest.fixture
def alone():
    """A call on two ranks of which this test is the other end; what it signals is noted."""
    ranks = [RankProcess(rank) for rank in range(2)]
    for process in ranks:
        process.listen()
    server, there = socket.socketpair()
    signalled = []
    processes = SimpleNamespace(
        ranks=ranks,
        server=SimpleNamespace(remember="for its end"),
        fileno=server.fileno,
        notices=lambda: ranks[:1],
        signal=lambda ranks, number: signalled.append(ranks),
    )
    draws = iter(range(100))  # a call that goes on longer fails
    screen = SimpleNamespace(draw=lambda: next(draws), finish=lambda: None, point=lambda row: None)
    one = call.Call(processes, screen)
    one.signalled = signalled
    yield one
    one.close()
    for process in ranks:
        process.given_away()
        process.close()
    server.close()
    there.close()


def fails(rank, message="so"):
    return Failure(rank, time.monotonic(), kind="ValueError", message=message)


def test_the_last_words_of_a_rank_that_has_ended_are_heard_first(alone):
    """The news of its end came before they were read."""
    rank = Channel(alone.processes.ranks[0]._channel)
    rank.send("log", 0.5, {"loss": 1.0})
    report = {"kind": "ValueError", "message": "mine", "when": 0.0}
    rank.send("error", report)
    alone.processes.ranks[0].status = 1
    alone.hear_server()
    assert alone.rows.kept == [{"rank": 0, "loss": 1.0, "seconds": 0.5}]
    assert alone.failures == {0: Failure(rank=0, **report)}


def test_prints_and_messages_are_signs_of_life(alone):
    process = alone.processes.ranks[1]
    for speak in (
        lambda: os.write(process._stdout, b"x\n"),
        lambda: Channel(process._channel).send("track", "steps", 1, 2),
    ):
        alone.screen.progress = lambda *_: None
        alone.last_sign, alone.looks.due = 0.0, 0.0
        speak()
        alone.hear(5)
        assert alone.last_sign > 0
        assert alone.looks.due > 0


def test_the_file_of_a_large_result_is_closed_also_if_it_cannot_be_read(alone):
    parcels = pack(torch.zeros(100_000)), Parcel(None, [8, 8], anonymous_file())
    for rank, parcel in enumerate(parcels):
        alone.take_result(rank, parcel)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(parcel.fd)
    assert alone.results.keys() == {0}
    assert alone.failures[1].verb == "returned a value that the notebook cannot rebuild:"


def test_what_was_printed_before_the_last_answer_is_shown(alone, capsys):
    alone.results = {0: None, 1: None}
    os.write(alone.processes.ranks[1]._stdout, b"last words\n")
    alone.wait(None)
    assert "[rank 1] last words" in capsys.readouterr().out


def test_after_a_failure_the_call_ends_though_another_rank_goes_on(alone, monkeypatch):
    monkeypatch.setattr(call, "STACK_SECONDS", 0.01)
    alone.failures = {1: fails(1)}
    with pytest.raises(WorkerError, match="rank 1 raised ValueError: so"):
        alone.wait(None)
    assert alone.signalled == [[0]]


def test_silence_from_the_beginning_is_a_hang_too(alone, monkeypatch):
    """As in a later call of a cluster: the ranks have met, which would be a sign of life."""
    alone.processes.ranks[0].joined = True
    monkeypatch.setattr(call, "STACK_SECONDS", 0.01)
    with pytest.raises(WorkerError, match=r"no sign of life from any rank for 0\.1 s"):
        alone.wait(0.1)


def test_only_ranks_that_still_run_are_asked_for_their_stacks(alone, monkeypatch):
    monkeypatch.setattr(call, "STACK_SECONDS", 0.0)
    alone.results = {0: "done"}
    alone.ask_for_stacks()
    alone.failures = {1: fails(1)}
    alone.ask_for_stacks()
    alone.results, alone.processes.ranks[0].status = {}, 0
    alone.ask_for_stacks()
    assert alone.signalled == [[1], [], []]


@pytest.mark.parametrize(
    ("joined", "status", "headline"),
    [
        (False, 1, "rank 2 could not start: its process ended with exit code 1"),
        (True, 1, "rank 2 ended with exit code 1 before it returned"),
        (False, -9, "rank 2 was killed by SIGKILL"),
        (False, 70, "rank 2 could not start: no memory"),
    ],
)
def test_an_end_before_joining_is_told_from_one_after_it(joined, status, headline):
    process = SimpleNamespace(rank=2, status=status, problem="no memory", joined=joined)
    assert call.Call.end_of(None, process).headline().startswith(headline)


def test_all_that_ranks_say_is_heard(capsys):
    def talk(worker):
        for step in range(3):
            worker.log(step=step, own=10 * worker.rank + step)
        assert sys.stdin.read() == ""  # /dev/null, and no descriptor of something else
        print("out of", worker.rank)
        print("wrong in", worker.rank, file=sys.stderr)
        for _ in worker.track(range(4), label="work"):
            pass
        return worker.rank

    runs = launch(talk, workers=2)
    assert list(runs) == [0, 1]
    for rank in range(2):
        rows = [row for row in runs.records if row["rank"] == rank]
        assert [(row["step"], row["own"]) for row in rows] == [(n, 10 * rank + n) for n in range(3)]
        assert 0 <= rows[0]["seconds"] <= rows[-1]["seconds"] <= runs.seconds
    out, err = capsys.readouterr()
    assert "work rank 0: 4/4, work rank 1: 4/4" in out
    for rank in range(2):
        assert f"[rank {rank}] out of {rank}\n" in out
        assert f"[rank {rank}] wrong in {rank}\n" in err


def test_prints_come_as_they_are_printed(tmp_path):
    """The rank waits until the notebook has shown its first line."""
    seen, shown = [], tmp_path / "shown"

    class Watch:
        def write(self, text):
            seen.append(text)
            shown.touch()

        def flush(self):
            pass

    def f(worker):
        print("first")
        while not shown.exists():
            time.sleep(0.01)
        print("second")

    before, sys.stdout = sys.stdout, Watch()
    try:
        launch(f, workers=1, timeout=20)
    finally:
        sys.stdout = before
    assert seen[:2] == ["[rank 0] first\n", "[rank 0] second\n"]


def test_a_death_while_the_others_wait_is_told_by_its_rank():
    def f(worker):
        if worker.rank == 2:
            os.kill(os.getpid(), 9)
        dist.barrier()

    for _ in range(3):  # the neighbours' complaints race with the news of the death
        with pytest.raises(WorkerError) as caught:
            launch(f, workers=3)
        assert caught.value.rank == 2
        assert caught.value.kind == "died"


def test_once_all_have_ended_nothing_is_waited_for(monkeypatch):
    monkeypatch.setattr(call, "SETTLE_SECONDS", 60.0)

    def fail(worker):
        time.sleep(0.2 * (worker.rank == 1))
        if worker.rank < 2:
            raise ValueError("no")

    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        launch(fail, workers=3)
    assert time.monotonic() - began < 30
    assert caught.value.rank == 0
    assert caught.value.others == {2: "done"}
    assert "rank 1 failed the same way" in str(caught.value)


def rebuild(pid, data):
    if os.getpid() == pid:
        raise ImportError("no such thing here")
    return data


def test_a_result_that_cannot_be_rebuilt_is_told_and_leaves_no_descriptor():
    launch(lambda worker: None, workers=1)
    gc.collect()  # what other tests have left would be closed meanwhile
    before, here = len(os.listdir("/proc/self/fd")), os.getpid()

    def give(worker, large):
        class Foreign:
            def __reduce__(self):
                return rebuild, (here, large)

        return Foreign()

    with pytest.raises(WorkerError, match="cannot rebuild: ImportError: no such thing") as caught:
        launch(give, workers=1, large=torch.zeros(100_000))  # too large for a message
    assert caught.value.rank == 0
    assert len(os.listdir("/proc/self/fd")) <= before


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
    os.close(process._stderr)
    process._stderr = os.open(os.devnull, os.O_WRONLY)
    alone.hear(5)
    assert len(alone.selector.get_map()) == there - 2


@pytest.mark.parametrize(("silent", "met"), [(True, True), (False, True), (True, False)])
def test_without_a_sign_of_life_the_call_hangs(alone, monkeypatch, silent, met):
    """Ranks that have not met yet may be importing PyTorch."""
    monkeypatch.setattr(call, "STACK_SECONDS", 0.0)
    alone.processes.ranks[0].joined = met
    alone.results = {1: None}
    alone.last_sign = time.monotonic() - (30 if silent else -30)
    draws = []

    def draw():
        draws.append(True)
        if len(draws) > 2:
            alone.results[0] = None  # at last

    alone.screen.draw = draw
    if not (silent and met):
        return alone.wait(20 if silent else 0.01)
    with pytest.raises(WorkerError, match=r"no sign of life from any rank for 20 s") as caught:
        alone.wait(20)
    assert "rank 1 was done" in str(caught.value)
    assert alone.signalled == [[0]]


@pytest.mark.parametrize(("joined", "person"), [(False, True), (True, True), (False, False)])
def test_a_long_start_is_announced_to_a_person(alone, monkeypatch, capsys, joined, person):
    monkeypatch.setattr(call, "PATIENT_SECONDS", 0.0)
    monkeypatch.setattr(call, "watched", lambda: person)
    alone.processes.ranks[0].joined = joined
    draws = iter([{}, {}, {0: None, 1: None}])
    alone.screen.draw = lambda: alone.results.update(next(draws))
    alone.wait(None)
    assert capsys.readouterr().out.count(call.STARTING) == (person and not joined)


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
