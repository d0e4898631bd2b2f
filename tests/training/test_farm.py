"""The farm runs every task once, retries and names failed tasks, and leaves nothing behind."""

import os
import queue
import signal
import threading
import time

import psutil
import pytest
import torch

from helpers.runtime.cluster import Cluster
from helpers.runtime.devices import cores
from helpers.runtime.failure import WorkerError
from helpers.runtime.joined import member
from helpers.runtime.local.forkserver.bootstrap import SPARE
from helpers.training.farm import FarmError, carry_out, farm, shown, work


def square(worker, x):
    assert worker.world_size == 1
    return x * x


def test_results_come_in_the_order_of_the_tasks(capsys):
    done = []
    assert farm(square, range(7), workers=3, done=lambda *pair: done.append(pair)) == [
        0, 1, 4, 9, 16, 25, 36,
    ]  # fmt: skip
    assert sorted(done) == [(i, i * i) for i in range(7)]
    last = "".join(capsys.readouterr()).splitlines()[-1]
    assert "tasks" in last
    assert "7/7" in last


def test_a_dict_is_given_as_arguments_and_no_task_is_no_work():
    assert farm(lambda worker, a, b: a - b, [{"a": 3, "b": 1}]) == [2]
    assert farm(square, []) == []


def dies_once(worker, task, folder):
    mark = os.path.join(folder, str(task))
    if task == 2 and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_task_whose_process_was_killed_is_tried_again(tmp_path):
    tasks = [{"task": i, "folder": str(tmp_path)} for i in range(4)]
    assert farm(dies_once, tasks, workers=2) == [0, 1, 2, 3]


def test_without_retries_it_counts_as_failed(tmp_path):
    tasks = [{"task": i, "folder": str(tmp_path)} for i in range(4)]
    with pytest.raises(FarmError, match="SIGKILL"):
        farm(dies_once, tasks, workers=2, retries=0)


def never(worker, task):
    if task == "bad":
        raise ValueError("no such thing")
    return task


def test_the_one_that_fails_is_named_and_the_others_are_carried_out():
    done = []
    with pytest.raises(FarmError, match=r"task 1, 'bad': .*no such thing") as error:
        farm(never, ["a", "bad", "c", "d"], workers=2, done=lambda place, _: done.append(place))
    assert error.value.results == ["a", None, "c", "d"]
    assert list(error.value.failed) == [1]
    assert str(error.value).startswith("1 of 4 tasks failed:\ntask 1")
    assert sorted(done) == [0, 2, 3]


def test_a_long_task_is_shown_in_one_line_of_80():
    assert shown({"a": 1}) == "{'a': 1}"
    assert shown("x" * 78) == repr("x" * 78)  # 80 with its quotes
    assert shown("x" * 79) == "'" + "x" * 78 + "…"
    assert shown(torch.zeros(2, 2)) == "tensor([[0., 0.], [0., 0.]])"


def test_what_is_refused(monkeypatch):
    for wrong in ({"workers": 0}, {"retries": -1}):
        with pytest.raises(ValueError, match="workers must be at least 1, and retries"):
            farm(square, [1], **wrong)
    monkeypatch.setattr(member, "here", lambda: object())
    with pytest.raises(RuntimeError, match="run this script without a launcher"):
        farm(square, [1])


def meet(worker, folder, name, others):
    """Wait until both workers are here; a worker that runs alone fails."""
    open(os.path.join(folder, name), "w").close()
    end = time.monotonic() + 20
    while len(os.listdir(folder)) < others:
        assert time.monotonic() < end, "alone"
        time.sleep(0.01)
    return os.getpid(), torch.get_num_threads()


def test_workers_run_at_the_same_time_and_share_the_cores(tmp_path):
    tasks = [{"folder": str(tmp_path), "name": str(i), "others": 2} for i in range(2)]
    pids, threads = zip(*farm(meet, tasks, workers=2), strict=True)
    assert len(set(pids)) == 2
    assert threads == (max(1, cores() // 2),) * 2


def sleeps(worker, seconds):
    time.sleep(seconds)
    return os.getpid()


def test_a_task_without_a_sign_of_life_counts_as_hanging():
    with pytest.raises(FarmError, match="no sign of life"):
        farm(sleeps, [60], workers=1, timeout=0.5, retries=0)


def marks(worker, folder, k):
    open(os.path.join(folder, str(k)), "w").close()
    time.sleep(60)


def test_an_interrupt_stops_all_at_once(tmp_path):
    before = set(psutil.Process().children(recursive=True))
    timer = threading.Timer(2.0, signal.raise_signal, [signal.SIGINT])
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        farm(marks, [{"folder": str(tmp_path), "k": k} for k in range(9)], workers=2)
    assert time.monotonic() - began < 20
    assert {*os.listdir(tmp_path)} <= {"0", "1"}  # no other task begins
    left = [p for p in psutil.Process().children(recursive=True) if p not in before]
    # the server that forks the ranks stays for the next call, and its spares
    assert len([p for p in left if p.is_running() and p.name() != SPARE]) <= 2, left


@pytest.mark.parametrize("tasks", [[0, 60, 60], [0, 60]], ids=["both busy", "one has ended"])
def test_an_error_in_done_stops_the_farm(tasks):
    before = threading.active_count()

    def full(place, result):
        while threading.active_count() > before + len(tasks) - 1:  # the worker without a task ends
            time.sleep(0.01)
        raise OSError("disk full")

    began = time.monotonic()
    with pytest.raises(OSError, match="disk full"):
        farm(sleeps, tasks, workers=2, done=full)
    assert time.monotonic() - began < 30
    assert threading.active_count() == before


def test_workers_are_spread_over_the_gpus(monkeypatch):
    """The GPU counts are made up, so the test needs no GPU."""
    made, closed = [], []

    class Recorded(Cluster):
        def __init__(self, workers, *, first_gpu=0, **options):
            made.append(first_gpu)
            super().__init__(workers, device="cpu", **options)

        def close(self):
            closed.append(self)
            super().close()

    monkeypatch.setattr("helpers.training.farm.Cluster", Recorded)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    farm(sleeps, [0.0] * 5, workers=5)
    assert made == [0, 1, 0, 1, 0]
    assert len(set(closed)) == 5
    made.clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    farm(sleeps, [0.0] * 2, workers=2)
    assert made == [0, 0]


class Failing:
    """A process in which the first tries of task a fail."""

    def __init__(self, failures, error):
        self.left, self.error, self.tries = failures, error, ""

    def run(self, carried, *, task, **settings):
        assert (carried, settings) == (carry_out, {"fn": square, "threads": 3})
        self.tries += task
        if task == "a" and self.left:
            self.left -= 1
            raise self.error
        return [f"done {task}"]


LOST = WorkerError("rank 0 died", kind="died", rank=0)


@pytest.mark.parametrize(
    ("failures", "error", "retries", "tries", "told"),
    [
        (2, LOST, 2, "abaa", [(1, "done b", None), (0, "done a", None)]),
        (4, LOST, 2, "abaa", [(1, "done b", None), (0, None, LOST)]),
        (1, LOST, 0, "ab", [(0, None, LOST), (1, "done b", None)]),
        (1, KEPT := TypeError("no pickle"), 2, "ab", [(0, None, KEPT), (1, "done b", None)]),
    ],
)
def test_a_lost_task_goes_to_the_end_of_the_queue_a_few_times(
    failures, error, retries, tries, told
):
    waiting, news, over = queue.SimpleQueue(), queue.SimpleQueue(), threading.Event()
    for place in range(2):
        waiting.put((place, 1))
    process = Failing(failures, error)
    work(process, square, "ab", waiting, news, retries, 3, over)
    assert process.tries == tries
    assert [news.get_nowait() for _ in range(2)] == told
    assert news.empty()
    over.set()
    waiting.put((0, 1))
    work(process, square, "ab", waiting, news, retries, 3, over)
    assert process.tries == tries  # none after the end


def test_failed_tasks_are_listed_in_their_order():
    """Not in the order in which they failed."""
    failed = {2: ValueError("late"), 0: OSError("early")}
    error = FarmError([{"a": 1}, "b", "c"], failed, [None, 7, None])
    assert str(error).splitlines() == [
        "2 of 3 tasks failed:",
        "task 0, {'a': 1}: early",
        "task 2, 'c': late",
    ]
    assert (error.failed, error.results) == (failed, [None, 7, None])
