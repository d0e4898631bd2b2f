"""What a student's function does on ranks, told in the student's own lines."""

import time

import pytest

from helpers.check import elsewhere, hidden, oracle
from helpers.check.limit import TooLong
from helpers.runtime.failure import WorkerError
from helpers.runtime.payload import CannotTravel


def right(runs):
    pass


def call(worker, solve):
    return solve(worker)


def examined(solve, judge=right, **options):
    return oracle.examine("exercise", solve, [(1, {}), (2, {})], call, judge, **options)


def test_what_no_judge_finds_wrong_has_passed():
    assert examined(lambda worker: worker.rank).status == "passed"


def test_a_stub_is_not_written_yet():
    def stub(worker):
        raise NotImplementedError

    assert examined(stub).status == "not written yet"


def test_the_judge_s_words_with_the_number_of_ranks():
    def judge(runs):
        if len(runs) == 2:
            raise oracle.NotRight("two are too many", "Which one is it?")

    verdict = examined(lambda worker: None, judge)
    assert (verdict.status, verdict.hint) == ("wrong", "Which one is it?")
    assert verdict.finding == "with 2 ranks: two are too many"


def test_an_answer_that_nobody_thought_of_is_wrong():
    def judge(runs):
        return {}["answer"]

    verdict = examined(lambda worker: None, judge)
    assert verdict.status == "wrong"
    assert verdict.finding == (
        "with 1 rank: the check cannot compare what your function returned (KeyError: 'answer')"
    )


def test_an_error_shows_the_student_s_lines_alone():
    def divide(worker):
        return 1 / worker.rank

    for words in ("By what?", ""):
        verdict = examined(divide, hint_failure=lambda finding: words * ("Zero" in finding))  # noqa: B023
        assert verdict.hint == words
    assert "with 1 rank: rank 0 raised ZeroDivisionError" in verdict.finding
    assert "return 1 / worker.rank" in verdict.finding
    assert "site-packages" not in verdict.finding


def test_a_failure_is_not_run_again(tmp_path):
    def fail(worker):
        with open(tmp_path / "calls", "a") as file:
            file.write(".")
        raise ZeroDivisionError

    assert examined(fail).status == "wrong"
    assert (tmp_path / "calls").read_text() == "."


def test_a_check_may_be_patient(monkeypatch):
    monkeypatch.setattr(oracle, "TIMEOUT", 0.3)
    assert examined(lambda worker: time.sleep(0.7), patience=60)


class Place(elsewhere.Here):
    """A place that gives these results, one after the other, or raises them."""

    def __init__(self, *results):
        self.results, self.asked = list(results), []

    def launch(self, run, workers, fn, kwargs, timeout):
        self.asked.append((workers, fn, kwargs, timeout))
        self.run = run
        found = self.results.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


def at(place, cases=((3, {"rows": 4}),), judge=lambda runs, rows: None, **options):
    with elsewhere.at(place):
        verdict = oracle.examine("rows", len, cases, call, judge, **options)
    assert verdict.exercise == "rows"
    return verdict


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
    assert verdict.hint == (oracle.HANG_HINT if hangs else "")
    assert place.asked == [(3, len, {"rows": 4}, 10.0)]
    if isinstance(error, WorkerError):
        assert at(Place(error), hint_failure=lambda found: f"Of {found}").hint == f"Of {finding}"
        assert at(Place(error), hint_failure=lambda found: "").hint == verdict.hint


def test_the_first_wrong_case_is_the_last_that_runs():
    def judge(runs, rows):
        if runs != rows:
            raise oracle.NotRight(f"{runs} rows")

    cases = [(1, {"rows": 4}), (2, {"rows": 5}), (3, {"rows": 6})]
    place = Place(4, 0, 6)
    assert at(place, cases, judge, patience=2.5).finding == "with 2 ranks: 0 rows"
    assert place.asked == [(1, len, {"rows": 4}, 25.0), (2, len, {"rows": 5}, 25.0)]
    assert at(Place(4, 5, 6), cases, judge).status == "passed"


def test_a_machine_that_was_too_busy_gets_a_second_chance():
    busy = WorkerError("no sign of life", kind="hang", traceback="rank 0 was not answering")
    place = Place(busy, 5)
    assert at(place).status == "passed"
    assert len(place.asked) == 2
    assert place.asked[0] == place.asked[1]
    assert at(Place(busy, busy)).status == "wrong"


def test_ranks_draw_their_inputs_as_the_judge_does():
    def drawn(worker, solve):
        return hidden.seed(1)

    place = Place(5)
    with hidden.drawn_from(7), elsewhere.at(place):
        assert oracle.examine("rows", len, [(2, {})], drawn, right)
        here = hidden.seed(1)
    assert place.run(None, solve=len) == here != 1


def test_ranks_that_had_not_begun_are_no_deadlock():
    first = "with 2 ranks: no sign of life from any rank for 10 s: a hang\n"
    slow = "rank 0 was not answering\nrank 1 was not answering"
    assert oracle.started_too_slowly(first + slow)
    assert not oracle.started_too_slowly(f"{first}{slow}\nrank 10 was waiting")
    for waits in (0, 1):
        other = slow.replace(f"{waits} was not answering", f"{waits} was waiting")
        assert not oracle.started_too_slowly(first + other)
    assert not oracle.started_too_slowly("")


def test_a_traceback_keeps_what_follows_a_library_s_frame():
    traceback = """Traceback (most recent call last):
  File "/x/helpers/check/direct.py", line 9, in call
    fn()
  Cell In[3], line 4, in mine
    theirs()
  File "/x/site-packages/numpy/x.py", line 2, in theirs
    again()
  File "/built/torch/x.py", line 3, in again
    1 / 0
    ~~^~~
ZeroDivisionError: division by zero"""
    assert oracle.own_frames(traceback).splitlines() == [
        "Traceback (most recent call last):",
        "  Cell In[3], line 4, in mine",
        "    theirs()",
        "ZeroDivisionError: division by zero",
    ]


def test_a_number_is_no_truth_value():
    numbers = [oracle.is_number(value) for value in (1, 1.5, True, False, "1", None)]
    assert numbers == [True, True, False, False, False, False]


@pytest.mark.parametrize("collective", [False, True])
def test_a_hang_gives_no_advice_about_launch(monkeypatch, collective):
    def hang(worker):
        import torch
        import torch.distributed as dist

        if collective and worker.rank:
            dist.all_reduce(torch.zeros(1))
        time.sleep(60 * (worker.world_size - 1))

    monkeypatch.setattr(oracle, "TIMEOUT", 1.5)
    verdict = examined(hang)
    assert verdict.hint == oracle.HANG_HINT
    assert "no sign of life" in verdict.finding
    assert "launch(" not in verdict.finding


def test_what_cannot_travel_is_named():
    import threading

    lock = threading.Lock()
    verdict = examined(lambda worker: lock.locked())
    assert verdict.status == "wrong"
    assert "`lock`" in verdict.finding
