"""Ranks that live on between calls."""

import linecache
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.cluster import Cluster, cell_sources, environ_changes
from helpers.runtime.failure import WorkerError
from helpers.runtime.worker import Worker


def build(worker):
    torch.manual_seed(0)
    worker.state.model = torch.nn.Linear(2, 2)
    worker.state.group = dist.new_group(list(range(worker.world_size)))


def step(worker):
    loss = worker.state.model(torch.ones(1, 2)).sum()
    dist.all_reduce(loss, group=worker.state.group)
    return loss.item(), os.getpid()


def test_state_and_groups_live_on():
    with Cluster(3) as cluster:
        cluster.run(build)
        first, second = cluster.run(step), cluster.run(step)
    assert list(first) == list(second)
    assert len({pid for _, pid in first}) == 3
    assert len({loss for loss, _ in first}) == 1


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_large_arguments_and_results_leave_no_file_open():
    def grow(worker, large):
        return large + worker.rank, len(os.listdir("/proc/self/fd"))

    def files():  # of each rank during a call, and of this process after it
        ranks = [open_files for _, open_files in cluster.run(grow, large=large)]
        return [*ranks, len(os.listdir("/proc/self/fd"))]

    with Cluster(2) as cluster:
        large = torch.zeros(100_000)  # more than travels in a message
        before = files()
        assert [files() for _ in range(2)][-1] == before


def test_a_file_that_changed_between_two_calls_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "students_model.py").write_text("width = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def width(worker):
        import students_model

        return students_model.width

    with Cluster(1) as cluster:
        assert cluster.run(width)[0] == 1
        (tmp_path / "students_model.py").write_text("width = 10\n")
        assert cluster.run(width)[0] == 1
        assert "students_model.py changed since these ranks imported it" in capsys.readouterr().out


def test_a_fork_of_the_notebook_has_no_ranks_yet():
    """It would otherwise talk to its parent's ranks, over the same sockets."""
    with Cluster(1) as cluster:
        [pid] = cluster.run(lambda worker: os.getpid())
        if (child := os.fork()) == 0:
            cluster.start = lambda: os._exit(0)  # it would start ranks of its own
            try:
                cluster.run(lambda worker: None, timeout=20)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert list(cluster.run(lambda worker: os.getpid())) == [pid]


def test_a_call_after_a_failure_begins_anew():
    with Cluster(2) as cluster:
        cluster.run(build)
        pids = {pid for _, pid in cluster.run(step)}
        with pytest.raises(WorkerError, match=r"starts new ranks: the contents of worker\."):
            cluster.run(lambda worker: 1 / 0)
        with pytest.raises(WorkerError, match="AttributeError") as caught:
            cluster.run(step)
        assert "worker.state are lost" not in str(caught.value)  # there was nothing to lose
        cluster.run(build)
        assert not pids & {pid for _, pid in cluster.run(step)}


def test_what_cannot_travel_costs_nothing():
    with Cluster(2) as cluster:
        cluster.run(build)
        with pytest.raises(TypeError):
            cluster.run(step, x=(i for i in range(3)))
        assert len(cluster.run(step)) == 2


def test_a_timeout_for_one_call():
    with Cluster(2) as cluster:
        with pytest.raises(WorkerError, match="no sign of life"):
            cluster.run(lambda worker: time.sleep(100), timeout=0.5)
        assert len(cluster.run(build)) == 2


@pytest.mark.alone
def test_signs_of_life_put_the_end_off():
    def alive(worker):
        for step in range(10):
            time.sleep(0.3)
            worker.log(step=step)
        return True

    with Cluster(1) as cluster:
        cluster.run(lambda worker: None)  # on a busy machine, the start alone takes a second
        assert cluster.run(alive, timeout=1.5)[0]


@pytest.mark.parametrize(
    ("fn", "kwargs", "words"),
    [
        (lambda worker: 1, {"worker": 4}, "number of ranks is `workers=`"),
        (lambda worker, x: 1, {}, "missing a required argument: 'x'"),
        (lambda worker: 1, {"steps": 4}, "unexpected keyword argument 'steps'"),
        (lambda: 1, {}, "too many positional arguments"),
    ],
)
def test_a_call_that_cannot_be_is_refused_here(fn, kwargs, words):
    with pytest.raises(TypeError) as error, Cluster() as cluster:
        cluster.run(fn, **kwargs)
    assert words in str(error.value)
    assert cluster.processes is None  # no rank was started for it


@pytest.mark.parametrize("timeout", [0, -1, 0.0, float("nan")])
def test_a_timeout_that_is_none_is_refused_here(timeout):
    with pytest.raises(ValueError, match="timeout must be positive"):
        Cluster(1, timeout=timeout)
    with Cluster(1) as cluster:
        with pytest.raises(ValueError, match="timeout must be positive"):
            cluster.run(len, timeout=timeout)
        with pytest.raises(TypeError, match="a number of seconds"):
            cluster.run(len, timeout=True)
        assert cluster.processes is None


def test_what_changed_in_the_environment(monkeypatch):
    monkeypatch.setenv("HELPERS_SAME", "1")
    monkeypatch.setenv("HELPERS_OTHER", "1")
    before = dict(os.environ) | {"HELPERS_GONE": "1"}
    assert environ_changes(before) == {"HELPERS_GONE": None}
    monkeypatch.setenv("HELPERS_OTHER", "2")
    monkeypatch.setenv("HELPERS_NEW", "3")
    changes = environ_changes(before)
    assert changes == {"HELPERS_GONE": None, "HELPERS_OTHER": "2", "HELPERS_NEW": "3"}


def test_the_text_of_cells_travels_and_no_file(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("x = 1\n")
    linecache.getline(str(file), 1)
    linecache.cache["<a cell>"] = (12, None, ["y = 1\n", "z = 2\n"], "<a cell>")
    linecache.cache["<not read yet>"] = (lambda: "",)
    try:
        found = cell_sources()
    finally:
        del linecache.cache["<a cell>"], linecache.cache["<not read yet>"]
    assert found["<a cell>"] == "y = 1\nz = 2\n"
    assert str(file) not in found
    assert "<not read yet>" not in found


def test_a_builtin_without_a_signature_can_be_called():
    with Cluster() as cluster:
        assert list(cluster.run(type)) == [Worker, Worker]
