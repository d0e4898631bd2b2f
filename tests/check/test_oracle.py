"""What a student's function does on ranks, told in the student's own lines."""

import time

import pytest

from helpers.check import oracle


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
    assert "cannot compare what your function returned (KeyError: 'answer')" in verdict.finding


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


def test_ranks_that_had_not_begun_are_no_deadlock():
    first = "with 2 ranks: no sign of life from any rank for 10 s: a hang\n"
    slow = "rank 0 was not answering\nrank 1 was not answering"
    assert oracle.started_too_slowly(first + slow)
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
  File "/x/site-packages/torch/x.py", line 2, in theirs
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
