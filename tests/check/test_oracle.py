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

    verdict = examined(divide, hint_failure=lambda finding: "By what?" * ("Zero" in finding))
    assert "with 1 rank: rank 0 raised ZeroDivisionError" in verdict.finding
    assert "return 1 / worker.rank" in verdict.finding
    assert "site-packages" not in verdict.finding
    assert verdict.hint == "By what?"


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
