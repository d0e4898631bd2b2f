"""A call as a folder: saved, run by a launcher, read back; and what is refused on the way."""

import linecache
import os
import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.cluster import DEFAULT_TIMEOUT
from helpers.runtime.joined import member
from helpers.runtime.joined.job import load_job, load_runs, main, run_job, save_job
from helpers.runtime.launch import launch
from helpers.runtime.runs import Runs
from tests.runtime.joined.machines import (
    BIN,
    can_make_networks,
    finish,
    one_machine,
    two_agents,
    two_machines,
)

MODULE = ("-m", "helpers.runtime.joined.job")
MPIEXEC = ("mpiexec", "-iface", "lo", "-n", "2", sys.executable, *MODULE)
needs_mpiexec = pytest.mark.skipif(
    not (BIN / "mpiexec").exists(), reason="the mpich wheel has none for this system"
)


@pytest.fixture(scope="module")
def machine():
    machine = one_machine()
    yield machine
    machine.close()


def train(worker, steps=3, weight=None):
    weight = weight.clone()
    losses = []
    for step in range(steps):
        gradient = (weight - worker.rank).sin()
        dist.all_reduce(gradient)
        weight -= 0.1 * gradient
        losses.append(weight.square().sum().item())
        worker.log(step=step, loss=losses[-1])
    return {"losses": losses, "weight": weight.tolist()}


def train_but_fail_first(worker, steps, weight, fn, mark):
    if worker.rank == 1 and not os.path.exists(mark):  # its agent may count no restart of its own
        Path(mark).touch()
        raise RuntimeError("the first attempt fails")
    dist.barrier()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    return {**fn(worker, steps, weight), "attempt": attempt}


def rows(runs):
    return [[r["rank"], r["step"], r["loss"]] for r in runs.frame().to_dict("records")]


@needs_mpiexec
def test_a_job_gives_the_same_runs(machine, tmp_path):
    arguments = {"steps": 5, "weight": torch.linspace(0, 1, 4, dtype=torch.float64)}
    folder = tmp_path / "new" / "job"
    save_job(folder, train, **arguments)
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileNotFoundError, match="rank 0 has left no result"):
        load_runs(folder)
    out = finish(machine.start(*MPIEXEC, folder))
    runs, twin = load_runs(folder), launch(train, workers=2, **arguments)
    assert list(runs) == list(twin), out
    assert rows(runs) == rows(twin)
    assert len(rows(runs)) == 10
    assert (runs.device, runs.backend) == (twin.device, twin.backend)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["job.pickle", "rank-00000.json", "rank-00001.json"]
    save_job(folder, train, **arguments)  # another job: the results of this one go
    assert [path.name for path in folder.iterdir()] == ["job.pickle"]


@pytest.mark.skipif(not can_make_networks(), reason="no network namespaces can be made here")
def test_torchrun_starts_again_on_two_machines(tmp_path):
    arguments = {"steps": 3, "weight": torch.ones(2)}
    save_job(tmp_path, train_but_fail_first, fn=train, mark=str(tmp_path / "failed"), **arguments)
    (tmp_path / "rank-00001.json").write_text("of another attempt")
    pair = two_machines()
    agents = two_agents(pair, *MODULE, tmp_path, options=["--max-restarts", "2"])
    outs = [finish(agent, 200) for agent in agents]  # two attempts, each imports PyTorch
    for machine in pair:
        machine.close()
    assert [agent.returncode for agent in agents] == [0, 0], outs
    runs, twin = load_runs(tmp_path), launch(train, workers=2, **arguments)
    assert [{"losses": r["losses"], "weight": r["weight"]} for r in runs] == list(twin)
    assert max(runs.column("attempt")) >= 1
    assert len(re.findall("rank 1 raised RuntimeError: the first attempt", "".join(outs))) >= 1


def harmful(folder: Path) -> Path:
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(folder / "it ran"),)

    job = folder / "job.pickle"
    job.write_bytes(pickle.dumps(Bomb()))
    folder.chmod(0o700)
    job.chmod(0o600)
    return job


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
@pytest.mark.parametrize("what", ["job", "folder"])
def test_a_job_that_others_can_write_is_not_read(tmp_path, what, mode):
    job = harmful(tmp_path)
    (job if what == "job" else tmp_path).chmod(mode | 0o100)
    with pytest.raises(PermissionError, match="can be written by other users"):
        load_job(tmp_path)
    assert not (tmp_path / "it ran").exists()


def test_a_job_of_another_user_is_not_read(tmp_path, monkeypatch):
    harmful(tmp_path)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        load_job(tmp_path)
    with pytest.raises(PermissionError, match="belongs to another user"):
        save_job(tmp_path, train)
    assert not (tmp_path / "it ran").exists()


@pytest.mark.timeout(60)  # nobody writes into the pipe
def test_a_link_or_a_pipe_is_no_job(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    harmful(elsewhere)
    (tmp_path / "job.pickle").symlink_to(elsewhere / "job.pickle")
    with pytest.raises(OSError, match="symbolic links"):
        load_job(tmp_path)
    (tmp_path / "job.pickle").unlink()
    os.mkfifo(tmp_path / "job.pickle")
    with pytest.raises(PermissionError, match="not a plain file"):
        load_job(tmp_path)
    assert not (elsewhere / "it ran").exists()


def test_what_cannot_be_saved_is_named(tmp_path):
    with open(__file__) as file, pytest.raises(TypeError, match=r"`weight` is .* into a file"):
        save_job(tmp_path / "job", train, steps=1, weight=file)
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("mode", [0o755, 0o711, 0o700])
def test_a_folder_that_was_there_keeps_its_mode(tmp_path, mode):
    tmp_path.chmod(mode)
    save_job(tmp_path, train)
    assert tmp_path.stat().st_mode & 0o777 == mode
    assert (tmp_path / "job.pickle").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_gets_no_job(tmp_path, mode):
    (tmp_path / "rank-00000.json").write_text("of an earlier job")
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match=r"can be written by other users.*chmod go-w"):
        save_job(tmp_path, train)
    assert tmp_path.stat().st_mode & 0o7777 == mode
    assert [path.name for path in tmp_path.iterdir()] == ["rank-00000.json"]


def test_without_a_launcher_it_says_how(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "no launcher started this process" in capsys.readouterr().err
    for arguments in ([], ["--help"], [str(tmp_path), "more"]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith("usage: torchrun")


class Rank:
    """One rank of three: each runs the job, and has the results of all."""

    world_size = 3

    def __init__(self, rank):
        self.rank = rank

    def choose(self, workers, device):
        assert (workers, device) == (3, None)
        return "cuda", "gloo and nccl"

    def run(self, fn, kwargs, *, device, backend, live, timeout, state):
        assert (kwargs, live, timeout, vars(state)) == ({}, None, DEFAULT_TIMEOUT, {})
        results = [fn(SimpleNamespace(rank=rank)) for rank in range(3)]
        self.attempts = [result["attempt"] for result in results]
        results[0]["attempt"] = "one for all"  # as the first rank has sent it
        rows = [{"rank": rank, "seconds": 0.5} for rank in range(3)]
        return Runs(results, rows, device, backend, 2.5)


def test_each_rank_leaves_its_own_result_and_the_attempt_of_rank_0(tmp_path, monkeypatch):
    save_job(tmp_path, lambda worker, x: (x, worker.rank), x=torch.ones(2))
    ranks = [Rank(rank) for rank in range(3)]
    for rank in ranks[:2]:
        run_job(tmp_path, rank)
    monkeypatch.setattr(member, "here", lambda: ranks[2])
    assert main([str(tmp_path)]) == 0
    assert ranks[0].attempts[1:] == ["", ""]
    assert len({rank.attempts[0] for rank in ranks}) == 3  # each start draws another
    runs = load_runs(tmp_path)
    assert list(runs) == [[[1.0, 1.0], rank] for rank in range(3)]
    assert (runs.device, runs.backend, runs.seconds) == ("cuda", "gloo and nccl", 2.5)
    assert [row["rank"] for row in runs.records] == [0, 1, 2]


def test_a_result_that_is_no_json_is_named_and_nothing_is_left(tmp_path):
    save_job(tmp_path, lambda worker: {"model": torch.nn.Linear(1, 1) if worker.rank else None})
    with pytest.raises(TypeError, match=r"^result\['model'\] is of type torch\.nn\."):
        run_job(tmp_path, Rank(0))
    assert not list(tmp_path.glob("rank-*"))


def test_a_job_brings_the_text_of_its_cells(tmp_path):
    name, text = "<a cell of the job>", "one\ntwo\n"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    try:
        save_job(tmp_path / "new" / "job", train, steps=3)
        assert (tmp_path / "new" / "job").stat().st_mode & 0o777 == 0o700
        del linecache.cache[name]
        fn, kwargs = load_job(tmp_path / "new" / "job")
        assert (fn.__name__, kwargs) == ("train", {"steps": 3})
        assert linecache.getline(name, 2) == "two\n"
    finally:
        linecache.cache.pop(name, None)


def test_a_job_that_cannot_be_written_leaves_the_old_one_whole(tmp_path, monkeypatch):
    for rank in range(2):  # of an earlier job
        (tmp_path / f"rank-{rank:05d}.json").touch()
    save_job(tmp_path, train, steps=3)

    def full(*_):
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save_job(tmp_path, train, steps=4)
    assert [path.name for path in tmp_path.iterdir()] == ["job.pickle"]
    assert load_job(tmp_path)[1] == {"steps": 3}
    (tmp_path / "job.pickle").unlink()
    with pytest.raises(FileNotFoundError):
        load_job(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
