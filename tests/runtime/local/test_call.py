"""One call, from the first sign of life to the last: what is heard, and whom it blames."""

import gc
import os
import sys
import time

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local import call


def test_all_that_ranks_say_is_heard(capsys):
    def talk(worker):
        for step in range(3):
            worker.log(step=step, own=10 * worker.rank + step)
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


def test_the_error_is_a_cause_that_can_be_caught():
    def f(worker):
        {}["missing"]

    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        launch(f, workers=3)
    assert time.monotonic() - began < 20
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.kind == "exception"
    assert '{}["missing"]' in caught.value.traceback


def test_a_death_while_the_others_wait_is_told_by_its_rank():
    def f(worker):
        if worker.rank == 2:
            os.kill(os.getpid(), 9)
        dist.barrier()

    for _ in range(5):  # the neighbours' complaints race with the news of the death
        with pytest.raises(WorkerError) as caught:
            launch(f, workers=3)
        assert caught.value.rank == 2
        assert caught.value.kind == "died"


def test_a_complaint_about_another_rank_waits_for_that_rank_s_own_words():
    def fail(worker):
        if worker.rank == 0:
            raise RuntimeError("Connection closed by peer")
        time.sleep(0.3)  # longer than after a likely cause
        raise ValueError("the cause")

    with pytest.raises(WorkerError, match="rank 1 raised ValueError: the cause") as caught:
        launch(fail, workers=2)
    assert caught.value.others == {0: "failing too: raised RuntimeError: Connection closed by peer"}


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


def test_those_that_still_run_are_asked_where():
    def fail(worker):
        if worker.rank == 0:
            dist.barrier()
        time.sleep(0.5)  # rank 0 is in its barrier by then
        raise ValueError("no")

    with pytest.raises(WorkerError, match="rank 1 raised ValueError") as caught:
        launch(fail, workers=2)
    assert caught.value.others[0].startswith("waiting in barrier, line ")


def rebuild(pid, data):
    if os.getpid() == pid:
        raise ImportError("no such thing here")
    return data


def test_a_result_that_cannot_be_rebuilt_is_told_and_leaves_no_descriptor():
    launch(lambda worker: None, workers=1)
    gc.collect()  # what other tests have left would be closed meanwhile
    before, here = len(os.listdir("/proc/self/fd")), os.getpid()

    def give(worker):
        class Foreign:
            def __reduce__(self):
                return rebuild, (here, torch.zeros(100_000))  # too large for a message

        return Foreign()

    with pytest.raises(WorkerError, match="cannot rebuild: ImportError: no such thing") as caught:
        launch(give, workers=1)
    assert caught.value.rank == 0
    assert len(os.listdir("/proc/self/fd")) <= before
