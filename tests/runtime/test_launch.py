"""What travels to the ranks and back through a whole call."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local import network
from helpers.runtime.local.forkserver import client

OFFSET = 10.0
OWN_NETWORK = sys.platform == "linux" and network.possible()


def sum_ranks(worker, x=0.0):
    t = torch.full((4,), x + worker.rank)
    dist.all_reduce(t)
    return {"sum": t[0].item()}


def test_sum_over_ranks():
    runs = launch(sum_ranks, workers=4, x=1.0)
    assert runs[0] == {"sum": 10.0}
    assert runs.column("sum") == [10.0] * 4
    assert (runs.device, runs.backend) == ("cpu", "gloo") or runs.device == "cuda"


@pytest.mark.parametrize("workers", [1, 5])
def test_any_number_of_ranks(workers):
    assert launch(sum_ranks, workers).column("sum") == [sum(range(workers))] * workers


def leaves_at_once(worker):
    if worker.rank == 0:
        dist.destroy_process_group()
    return worker.rank


def test_a_rank_that_destroys_the_group_at_once_does_not_break_the_others():
    for _ in range(5):
        assert list(launch(leaves_at_once, 4, device="cpu")) == [0, 1, 2, 3]


def test_not_a_function():
    with pytest.raises(TypeError, match="a function of a worker, not a"):
        launch(3)


def test_lambdas_and_closures():
    factor = 3.0
    assert list(launch(lambda worker: worker.rank * factor + OFFSET)) == [10.0, 13.0]
    assert list(launch(lambda worker: sys.stdout.close())) == [None, None]


def test_a_function_edited_a_moment_ago():
    def f(worker):
        return helper()

    def helper():
        return "old"

    assert launch(f)[0] == "old"

    def helper():  # noqa: F811
        return "new"

    assert launch(f)[0] == "new"


def test_a_class_of_the_notebook_is_the_same_class_when_it_comes_back():
    class Point:
        def __init__(self, x):
            self.x = x

    def f(worker, point):
        assert isinstance(point, Point)
        return Point(point.x + worker.rank)

    runs = launch(f, point=Point(5))
    assert isinstance(runs[1], Point)
    assert runs[1].x == 6


def test_arguments_are_private_copies():
    small, large = torch.zeros(4), torch.zeros(1 << 20)

    def f(worker, small, large):
        small += worker.rank + 1
        large += worker.rank + 1
        dist.barrier()
        return small[0].item(), large[0].item()

    assert list(launch(f, small=small, large=large)) == [(1.0, 1.0), (2.0, 2.0)]
    assert small.sum() == large.sum() == 0


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_way_to_start_is_the_caller_s_choice(start):
    def kind(worker):
        import multiprocessing

        tensor = torch.ones(2) * worker.rank
        dist.all_reduce(tensor)
        multiprocessing.set_start_method("spawn")  # a rank's own choice is still open
        kind = type(multiprocessing.current_process()).__name__
        return kind, tensor.tolist(), network.own()

    expected = f"{start.capitalize()}Process", [1.0, 1.0], OWN_NETWORK
    assert list(launch(kind, start=start)) == [expected] * 2


@pytest.mark.skipif(not Path("/proc/self/ns/net").exists(), reason="needs Linux")
def test_a_live_value_and_the_machines_network(capsys):
    """A terminal shows the latest value on a line."""

    def watched(worker):
        worker.log(loss=0.25)
        return os.readlink("/proc/self/ns/net")

    assert launch(watched, 1, live="loss", network=True)[0] == os.readlink("/proc/self/ns/net")
    assert "loss" in capsys.readouterr().out


def test_inside_a_process_that_multiprocessing_spawned(tmp_path):
    """Its functions are of a module that no other process has."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing, sys
from helpers import launch

class Table:
    rows = [7, 8]

def read(worker):
    return Table.rows[worker.rank]

def child(queue):
    queue.put(list(launch(read)))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
"""
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "[7, 8]\n", done.stderr


def test_every_option_reaches_the_ranks_and_the_ranks_are_closed(monkeypatch):
    told = []

    class Told:
        def __init__(self, *workers, **options):
            told.append((workers, options))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            told.append("closed")

        def run(self, fn, **options):
            told.append((fn, options))
            return "runs"

    module = sys.modules["helpers.runtime.launch"]
    monkeypatch.setattr(module, "Cluster", Told)
    options = {"device": "cpu", "timeout": 3.0, "debug": True, "start": "spawn", "network": True}
    options["compare"] = False
    assert launch(sum_ranks, 5, live="loss", x=2.0, **options) == "runs"
    assert told == [((5,), options), (sum_ranks, {"live": "loss", "x": 2.0}), "closed"]
    told.clear()
    launch(sum_ranks)
    defaults = {"device": None, "timeout": 120.0, "debug": False, "start": None, "network": False}
    defaults["compare"] = True
    assert told == [((2,), defaults), (sum_ranks, {"live": None}), "closed"]


def test_starting_without_a_fork(monkeypatch, capsys):
    """As on macOS: each rank is a program of its own. Slow, so all in one."""
    monkeypatch.setenv(client.START, "spawn")
    monkeypatch.setattr(client, "_server", server := client.Server())
    try:

        def boom(worker):
            if worker.rank == 1:
                print("here", flush=True)
                os.kill(os.getpid(), 9)
            dist.barrier()

        with Cluster(2) as cluster:
            assert cluster.run(sum_ranks, x=1.0).column("sum") == [3.0, 3.0]
            with pytest.raises(WorkerError) as caught:
                cluster.run(boom)
        assert caught.value.rank == 1
        assert "[rank 1] here" in capsys.readouterr().out
    finally:
        server.stop()
