"""What a cluster decides and says itself: no rank is started here."""

import os
from types import SimpleNamespace

import pytest

from helpers.runtime import cluster as module
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError


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
        3, device="cpu", timeout=5.0, debug=True, start="spawn", first_gpu=4, network=True
    )
    cluster.environ = {"OLD": "1"}
    cluster.start()
    how = {"device": (3, "cpu", 4), "backend": "gloo", "method": "spawn", "timeout": 5.0}
    assert started == [((3,), how | {"first_gpu": 4, "debug": True, "network": True})]
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
    processes = SimpleNamespace(kill=lambda wait: done.append(("killed", wait)))
    monkeypatch.setattr(module.session, "keep", lambda *given: given == (processes, error) and kept)
    cluster = Cluster(1)
    cluster.processes = processes
    for _ in range(2):  # the second time, there are none
        cluster.stop(error)
        assert cluster.processes is None
    assert done == ([] if kept else [("killed", module.END_SECONDS)])


@pytest.mark.parametrize(
    ("device", "later", "pid", "expected"),
    [
        ("cpu", False, 0, ["leave", "close"]),
        ("cpu", True, 0, ["leave", "farewell", "close"]),
        ("cpu", True, 1, ["leave", "close"]),  # the ranks of the notebook that this is a fork of
        ("cuda", False, 0, ["leave", module.END_SECONDS, "close"]),
    ],
)
def test_the_end_is_waited_for_where_it_has_effects(monkeypatch, device, later, pid, expected):
    done = []
    processes = SimpleNamespace(
        later=later,
        pid=os.getpid() + pid,
        leave=lambda: done.append("leave"),
        wait=done.append,
        close=lambda: done.append("close"),
    )
    monkeypatch.setattr(module, "show_farewell", lambda given: done.append("farewell"))
    cluster = Cluster(1)
    cluster.device, cluster.processes, cluster.calls = device, processes, 3
    cluster.close()
    assert done == expected
    assert (cluster.processes, cluster.calls) == (None, 0)


def test_changed_files_are_told_from_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = [str(tmp_path / "b.py"), str(tmp_path / "lib" / "a.py")]
    for tell, who in ((module.tell_changed, "these ranks"), (module.tell_edited, "this process")):
        tell([])
        tell(files)
        tell(files[:1])
        two, one = capsys.readouterr().out.splitlines()
        assert two.startswith(f"b.py, lib/a.py changed since {who} imported them: ")
        assert one.startswith(f"b.py changed since {who} imported it: ")


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


@pytest.mark.parametrize(("workers", "words"), [(0, "not 0"), (-2, "not -2"), (1.0, "not 1.0")])
def test_a_number_of_ranks_that_is_none_is_refused_here(workers, words):
    with pytest.raises(ValueError, match=f"workers must be a positive whole number, {words}$"):
        Cluster(workers)
