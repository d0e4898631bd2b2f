"""Ranks that live on between calls; and what a cluster decides and says itself."""

import linecache
import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.runtime import cluster as module
from helpers.runtime.cluster import Cluster, environ_changes
from helpers.runtime.failure import WorkerError
from helpers.runtime.stacks import cell_sources
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


@pytest.mark.parametrize("timeout", [0, -1.5, float("inf"), float("nan"), True, "9"])
def test_a_timeout_that_is_no_time_is_refused(timeout):
    refused = partial(pytest.raises, (TypeError, ValueError), match=f"timeout .*, not {timeout!r}")
    with refused():
        Cluster(timeout=timeout)
    with refused(), Cluster() as cluster:
        cluster.run(build, timeout=timeout)


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


class Told:
    """A rank of a launcher that notes what it is asked to run."""

    world_size = 3

    def __init__(self, debug):
        self.debug, self.ran = debug, []

    def choose(self, workers, device):
        self.asked = workers, device
        return "cuda", "nccl"

    def run(self, fn, kwargs, **options):
        self.ran.append((fn, kwargs, options))
        return "runs"


def test_a_rank_of_a_launcher_runs_calls_itself(monkeypatch):
    monkeypatch.setattr(module.member, "here", Told)
    with Cluster(2, device="cpu", timeout=7.0, debug=True) as cluster:
        told = cluster.member
        assert (told.debug, told.asked) == (True, (2, "cpu"))
        assert (cluster.workers, cluster.device, cluster.backend) == (3, "cuda", "nccl")
        assert cluster.run(print, live="loss") == "runs"
        assert cluster.run(print, timeout=None, sep="") == "runs"
        assert cluster.processes is None
    options = {"device": "cuda", "backend": "nccl", "state": cluster.state}
    assert told.ran == [
        (print, {}, {"live": "loss", "timeout": 7.0, **options}),
        (print, {"sep": ""}, {"live": None, "timeout": None, **options}),
    ]


def test_every_option_reaches_the_start(monkeypatch):
    started = []
    monkeypatch.setattr(module, "start_ranks", lambda *of, **how: started.append((of, how)))
    monkeypatch.setattr(module, "choose_device", lambda *asked: (asked, "gloo"))
    cluster = Cluster(
        3, device="cpu", timeout=5.0, debug=True, start="spawn", first_gpu=4, network=True,
        compare=False,
    )  # fmt: skip
    cluster.environ = {"OLD": "1"}
    cluster.start()
    how = {"device": (3, "cpu", 4), "backend": "gloo", "method": "spawn", "timeout": 5.0}
    assert started == [
        ((3,), how | {"first_gpu": 4, "debug": True, "network": True, "compare": False})
    ]
    assert cluster.environ == dict(os.environ)  # the new ranks know no other
    defaults = Cluster()
    defaults.start()
    assert started[1][0] == (2,)
    assert {name: started[1][1][name] for name in ("timeout", "first_gpu", "debug", "network")} == {
        "timeout": 120.0, "first_gpu": 0, "debug": False, "network": False,
    }  # fmt: skip


@pytest.mark.parametrize("kept", [True, False])
def test_ranks_of_a_failed_call_are_kept_or_killed(monkeypatch, kept):
    done, error = [], ValueError()
    processes = SimpleNamespace(
        kill=lambda wait: done.append(("killed", wait)), prepare_next=lambda: done.append("next")
    )
    monkeypatch.setattr(module.session, "keep", lambda *given: given == (processes, error) and kept)
    cluster = Cluster(1)
    cluster.processes = processes
    for _ in range(2):  # the second time, there are none
        cluster.stop(error)
        assert cluster.processes is None
    assert done == ([] if kept else [("killed", module.END_SECONDS), "next"])


@pytest.mark.parametrize(
    ("device", "later", "pid", "expected"),
    [
        ("cpu", False, 0, ["leave", "next", "close"]),
        ("cpu", True, 0, ["leave", "next", "farewell", "close"]),
        (
            "cpu",
            True,
            1,
            ["leave", "next", "close"],
        ),  # the ranks of the notebook that this is a fork of
        ("cuda", False, 0, ["leave", "next", 8.0, "close"]),
    ],
)
def test_the_end_is_waited_for_where_it_has_effects(monkeypatch, device, later, pid, expected):
    done = []
    processes = SimpleNamespace(
        later=later,
        pid=os.getpid() + pid,
        leave=lambda: done.append("leave"),
        prepare_next=lambda: done.append("next"),
        wait=done.append,
        close=lambda: done.append("close"),
    )
    monkeypatch.setattr(module, "show_farewell", lambda given: done.append("farewell"))
    cluster = Cluster(1)
    cluster.device, cluster.processes, cluster.calls = device, processes, 3
    cluster.close()
    assert done == expected  # ranks may take 5 s, and are killed then
    assert (cluster.processes, cluster.calls) == (None, 0)


def test_changed_files_are_told_from_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = [str(tmp_path / "b.py"), str(tmp_path / "lib" / "a.py")]
    for who, text in (module.OF_RANKS, module.OF_THIS_PROCESS):
        for changed in ([], files, files[:1]):
            module.tell_changed(changed, who, text)
        two, one = capsys.readouterr().out.splitlines()
        assert two == f"b.py, lib/a.py changed since {who} imported them: {text}"
        assert one == f"b.py changed since {who} imported it: {text}"


def test_what_is_lost_with_the_ranks_is_told_with_every_error(capsys):
    error = WorkerError("headline", kind="died")
    for each in (error, KeyboardInterrupt(), ValueError("so")):
        module.explain_loss(each)
    text = "The next call starts new ranks: the contents of worker.state are lost."
    assert str(error) == f"headline\n{text}"
    assert capsys.readouterr().out == f"Interrupted. {text}\n"


def test_which_starts_there_are(monkeypatch):
    monkeypatch.setattr(module, "start_method", lambda: "fork")
    assert [module.choose_start(start) for start in (None, "fork", "spawn")] == [
        "fork", "fork", "spawn",
    ]  # fmt: skip
    monkeypatch.setattr(module, "start_method", lambda: "spawn")
    assert [module.choose_start(start) for start in (None, "spawn")] == ["spawn"] * 2
    with pytest.raises(ValueError, match='start="fork" is not safe here'):
        module.choose_start("fork")
    with pytest.raises(ValueError, match="None, not 'forkserver'"):
        module.choose_start("forkserver")


@pytest.mark.parametrize("workers", [0, -2, 1.0])
def test_a_number_of_ranks_that_is_none_is_refused_here(workers):
    with pytest.raises(ValueError, match=f"a positive whole number, not {workers}$"):
        Cluster(workers)


@pytest.mark.parametrize("timeout", [0, -1, 0.0, float("nan"), float("inf"), True])
def test_a_timeout_that_is_none_is_refused_here(timeout):
    kind, said = (TypeError, "a number of sec") if timeout is True else (ValueError, "be positive")
    with pytest.raises(kind, match=said):
        Cluster(1, timeout=timeout)
    with pytest.raises(kind, match=said):
        Cluster(1).run(len, timeout=timeout)
