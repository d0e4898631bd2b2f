"""What a student's function does on ranks, told in the student's own lines."""

import time

import pytest

from helpers.check import elsewhere, hidden, ranks
from helpers.check.limit import TooLong
from helpers.check.ranks import OnRanks
from helpers.check.verdict import own_frames
from helpers.runtime.failure import WorkerError
from helpers.runtime.payload import CannotTravel


def call(worker, solve, rows=0):
    return {"rows": solve(worker)}


def right(worker):
    return worker.rank


def exercise(**options):
    return OnRanks(
        **{"name": "rows", "right": right, "run": call, "cases": [(1, {}), (2, {})], **options}
    )


def test_what_leaves_the_same_behind_has_passed_and_a_stub_is_not_written_yet():
    def stub(worker):
        raise NotImplementedError

    assert exercise()(lambda worker: worker.rank).status == "passed"
    assert exercise()(stub).status == "not written yet"


def test_a_wrong_answer_with_the_number_of_ranks_and_the_rank():
    verdict = exercise()(lambda worker: 0)
    assert (verdict.status, verdict.exercise) == ("wrong", "rows")
    start = "with 2 ranks: rows of rank 1: 0; it is 1"
    assert verdict.finding == f"{start}; it is what rank 0 should have"
    times = exercise()(lambda worker: worker.rank * worker.world_size)
    assert "multiplied by the number" in times.hint


def test_an_error_shows_the_student_s_lines_alone():
    def divide(worker):
        return 1 / worker.rank

    for hint in ("By what?", ""):
        verdict = exercise(failures=[("Zero", hint, None)])(divide)
        assert verdict.hint == hint
    assert "with 1 rank: rank 0 raised ZeroDivisionError" in verdict.finding
    assert "return 1 / worker.rank" in verdict.finding
    assert "site-packages" not in verdict.finding


def test_a_failure_is_not_run_again(tmp_path):
    def fail(worker):
        with open(tmp_path / "calls", "a") as file:
            file.write(".")
        raise ZeroDivisionError

    assert exercise()(fail).status == "wrong"
    assert (tmp_path / "calls").read_text() == "."


def test_a_check_may_be_patient(monkeypatch):
    monkeypatch.setattr(ranks, "TIMEOUT", 0.3)
    assert exercise(patience=60)(lambda worker: time.sleep(0.7) or worker.rank)


class Place(elsewhere.Here):
    """A place that gives these results, one after the other, or raises them."""

    beside = False

    def __init__(self, *results):
        self.results, self.asked = list(results), []

    def launch(self, run, workers, fn, kwargs, timeout):
        self.asked.append((workers, fn, kwargs, timeout))
        self.run = run
        found = self.results.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


def at(place, cases=((3, {"rows": 4}),), **options):
    with elsewhere.at(place):
        return exercise(cases=cases, **options)(len)


NOTHING = "with 3 ranks: your function has not returned in time"


@pytest.mark.parametrize(
    ("error", "status", "finding"),
    [
        (elsewhere.Failed("it used 7 GB"), "wrong", "with 3 ranks: it used 7 GB"),
        (TooLong(), "wrong", NOTHING),
        (NotImplementedError(), "not written yet", ""),
        (CannotTravel("`lock` cannot travel"), "wrong", "`lock` cannot travel"),
        (WorkerError("rank 2 broke", kind="died"), "wrong", "with 3 ranks: rank 2 broke"),
        (
            WorkerError("rank 2 broke", kind="died", note="use launch(x)"),
            "wrong",
            "with 3 ranks: rank 2 broke\nuse launch(x)",
        ),
        (
            WorkerError("all wait", kind="hang", note="use launch(x)"),
            "wrong",
            "with 3 ranks: all wait",
        ),
    ],
)
def test_how_ranks_fail(error, status, finding):
    place = Place(error)
    verdict = at(place)
    assert (verdict.status, verdict.finding) == (status, finding)
    hangs = getattr(error, "kind", "") == "hang"
    assert verdict.hint == (ranks.HANG_HINT if hangs else "")
    assert place.asked == [(3, len, {"rows": 4}, 10.0)]
    if isinstance(error, WorkerError):
        assert at(Place(error), failures=[("broke|wait", "Of it.", None)]).hint == "Of it."


def test_a_machine_that_was_too_busy_gets_a_second_chance():
    """No rank had begun: that is no deadlock."""
    busy = WorkerError("rank 0 was not answering\nrank 1 was not answering", kind="hang")
    other = WorkerError("rank 0 was not answering\nrank 1 was waiting", kind="hang")
    place = Place(busy, other)
    assert at(place).status == "wrong"
    assert len(place.asked) == 2
    assert place.asked[0] == place.asked[1]
    place = Place(other)
    assert at(place).status == "wrong"
    assert len(place.asked) == 1


def test_ranks_draw_their_inputs_as_the_judge_does():
    def drawn(worker, solve):
        return {"drawn": hidden.seed(1)}

    place = Place(TooLong())
    with hidden.drawn_from(7), elsewhere.at(place):
        assert not exercise(run=drawn)(len)
        here = hidden.seed(1)
    assert place.run(None, solve=len) == {"drawn": here}
    assert here != 1


def test_a_traceback_keeps_what_follows_a_library_s_frame():
    traceback = """Traceback (most recent call last):
  File "/x/helpers/check/ranks.py", line 9, in call
    fn()
  Cell In[3], line 4, in mine
    theirs()
  File "/x/site-packages/numpy/x.py", line 2, in theirs
    again()
  File "/built/torch/x.py", line 3, in again
    exec("1 /")
    ~~^~~
  [Previous line repeated 3 more times]
  File "<string>", line 1
    1 /
SyntaxError: invalid syntax"""
    assert own_frames(traceback).splitlines() == [
        "Traceback (most recent call last):",
        "  Cell In[3], line 4, in mine",
        "    theirs()",
        '  File "<string>", line 1',
        "    1 /",
        "SyntaxError: invalid syntax",
    ]


@pytest.mark.parametrize("collective", [False, True])
def test_a_hang_gives_no_advice_about_launch(monkeypatch, collective):
    def hang(worker):
        import torch
        import torch.distributed as dist

        if collective and worker.rank:
            dist.all_reduce(torch.zeros(1))
        time.sleep(60 * (worker.world_size - 1))
        return worker.rank

    monkeypatch.setattr(ranks, "TIMEOUT", 1.5)
    verdict = exercise()(hang)
    assert verdict.hint == ranks.LOOP_HINT
    assert "no sign of life" in verdict.finding
    assert "launch(" not in verdict.finding


def test_a_rank_that_waits_for_its_own_request_is_in_no_loop():
    lines = "rank 0 was done\nrank 1 was running, line 3 of a.py, in f: {}"
    text = "no sign of life from any rank for 1 s: a hang"
    for source, hint in (("request.wait()", ranks.HANG_HINT), ("while True:", ranks.LOOP_HINT)):
        error = WorkerError(text, kind="hang", traceback=lines.format(source))
        assert at(Place(error)).hint == hint


def test_ranks_whose_calls_differ_get_a_hint(monkeypatch):
    def differ(worker):
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.zeros(1 + (worker.rank > 0)))

    verdict = exercise(cases=((3, {}),))(differ)
    assert "rank 0 sends 1 number, ranks 1 and 2 send 2, in all_reduce" in verdict.finding
    assert verdict.hint == ranks.SAME_CALLS


def test_what_cannot_travel_is_named():
    import threading

    lock = threading.Lock()
    verdict = exercise()(lambda worker: lock.locked())
    assert verdict.status == "wrong"
    assert "`lock`" in verdict.finding
