"""What a rank makes of its setup and of its calls."""

import os
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist

from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local import rank
from helpers.runtime.local.rank import set_environ
from helpers.runtime.local.sources import SourceFiles
from helpers.runtime.payload import pack


def test_environment_folder_and_path_reach_the_ranks(tmp_path, monkeypatch):
    launch(lambda worker: None, workers=1)  # the server has the variables of before
    monkeypatch.setenv("A_STUDENTS_VARIABLE", "x y")
    monkeypatch.setenv("RANK", "9")  # each rank has its own
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "/none/such"])

    def f(worker):
        own = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
        variables = os.environ["A_STUDENTS_VARIABLE"], os.environ.get("HOME")
        return own, *variables, os.getcwd(), sys.path[-1]

    assert launch(f)[1] == (["1", "1", "2"], "x y", None, str(tmp_path), "/none/such")


def test_debug_names_a_mismatch():
    def f(worker):
        t = torch.ones(3 + worker.rank)
        dist.all_reduce(t) if worker.rank else dist.broadcast(t, 0)

    with pytest.raises(WorkerError, match=r"BROADCAST[^$]*ALLREDUCE|ALLREDUCE[^$]*BROADCAST"):
        launch(f, debug=True, timeout=20)
    levels = launch(lambda worker: str(dist.get_debug_level()), debug=True)
    assert "DETAIL" in levels[0]
    assert "OFF" in launch(lambda worker: str(dist.get_debug_level()))[0]
    assert "TORCH_DISTRIBUTED_DEBUG" not in os.environ


def test_results_that_cannot_travel():
    def f(worker):
        return {"a": 1, "b": (i for i in "xy")} if worker.rank == 1 else None

    with pytest.raises(WorkerError) as caught:
        launch(f, workers=3)
    assert caught.value.rank == 1
    assert "`result['b']` is a generator" in str(caught.value)
    assert "helpers/runtime" not in caught.value.traceback


def test_a_rank_that_closes_what_is_not_its_own():
    def close(worker):
        for number in map(int, os.listdir("/proc/self/fd")):
            try:
                kind = os.readlink(f"/proc/self/fd/{number}")
            except OSError:  # the listing's own
                continue
            # gloo aborts when its epoll descriptor is gone, sometimes before the worker notices
            if number > 2 and not kind.startswith("anon_inode"):
                os.close(number)

    with pytest.raises(WorkerError, match="rank 0 lost its connection to the notebook: did the"):
        launch(close, workers=1)


def test_the_backend_waits_for_the_time_that_the_setup_says():
    def limits(worker):
        group = dist.group.WORLD
        seconds = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        return group.rank(), group.size(), seconds

    assert list(launch(limits, workers=2, timeout=1000)) == [(0, 2, 2000.0), (1, 2, 2000.0)]


def test_variables_are_set_and_removed(monkeypatch):
    monkeypatch.setenv("HELPERS_OLD", "1")
    monkeypatch.setenv("HELPERS_KEPT", "2")
    monkeypatch.setenv("HELPERS_NEW", "to be removed at the end")
    set_environ({"HELPERS_OLD": None, "HELPERS_NEW": "3", "HELPERS_NEVER": None})
    names = ("HELPERS_OLD", "HELPERS_KEPT", "HELPERS_NEW", "HELPERS_NEVER")
    assert [os.environ.get(name) for name in names] == [None, "2", "3", None]


@pytest.mark.parametrize("fails", [False, True])
def test_a_fork_that_leaves_the_function_too_does_not_answer(fails):
    def fork(worker):
        if (child := os.fork()) == 0:
            if fails:
                raise ValueError("of the fork")
            return "the fork"
        os.waitpid(child, 0)
        return "the rank"

    assert list(launch(fork, workers=1)) == ["the rank"]


def test_processes_that_a_rank_started_end_with_it():
    def begin(worker):
        import multiprocessing

        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,))
        process.start()
        return process.pid

    (pid,) = launch(begin, workers=1)
    end = time.monotonic() + 30
    while psutil.pid_exists(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_from_call_to_call(monkeypatch, capsys):
    """A rank keeps no descriptor of a call, and its own place, whatever the notebook sets."""

    def look(worker, large):
        return len(os.listdir("/proc/self/fd")), os.environ["RANK"], torch.initial_seed()

    def fails(worker):
        print("half a line", end="")
        raise ValueError("so")

    with Cluster(2) as cluster:
        large = torch.zeros(100_000)  # more than travels in a message
        before = list(cluster.run(look, large=large))
        assert before[0][2] != before[1][2]  # each draws its own numbers
        monkeypatch.setenv("RANK", "7")
        for _ in range(2):
            after = list(cluster.run(look, large=large))
        assert [count for count, _, _ in after] == [count for count, _, _ in before]
        assert [rank for _, rank, _ in after] == ["0", "1"]
        with pytest.raises(WorkerError, match="so"):
            cluster.run(fails)
    assert "[rank 0] half a line" in capsys.readouterr().out


def test_what_a_call_imports_is_watched_before_it_answers(tmp_path, monkeypatch):
    (tmp_path / "students_module.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    files, watched = SourceFiles(), []

    def imports(worker):
        import students_module

        return students_module.x

    class Line:
        def post(self, *message):
            pass

        def send(self, kind, pickled, sizes, fd):
            watched.extend(files.seen)

    parcel = pack((imports, {}, {}))
    rank.run(SimpleNamespace(_channel=Line()), parcel, files)
    parcel.close()
    sys.modules.pop("students_module")
    assert str(tmp_path / "students_module.py") in watched


def test_a_large_result_leaves_no_descriptor_in_its_rank():
    def large(worker):
        return len(os.listdir("/proc/self/fd")), torch.ones(1 << 20)

    with Cluster(1, device="cpu") as cluster:
        counts = [cluster.run(large)[0][0] for _ in range(4)]
    assert counts[1:] == counts[1:2] * 3
