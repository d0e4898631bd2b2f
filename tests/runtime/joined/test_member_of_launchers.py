"""One script under python, torchrun, accelerate, mpiexec and (simulated) srun: the same results.

The launchers listen on all interfaces, so each runs in a network of its own where one can be made.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from helpers.runtime.devices import cores
from helpers.runtime.failure import WorkerError
from helpers.runtime.joined import member
from helpers.runtime.joined.heartbeat import Watch
from tests.runtime.joined.machines import (
    BIN,
    SCRIPT,
    can_make_networks,
    end,
    finish,
    one_machine,
    two_agents,
    two_machines,
    until,
)

NO_MPIEXEC = not (BIN / "mpiexec").exists()
ONE_AGENT = ("torchrun", "--nproc-per-node", "2")
ACCELERATE = "accelerate launch --num_processes 2 --num_machines 1 --mixed_precision no"
ACCELERATE = tuple(f"{ACCELERATE} --dynamo_backend no".split())
MPIEXEC = ("mpiexec", "-iface", "lo", "-n", "2")
STRAY = {  # in a shell of `salloc`, and with what some other launcher has left
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "10.255.255.1",
    "MASTER_PORT": "29500",
    "SLURM_JOB_ID": "1234",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NUM_TASKS": "1",
}
needs_mpiexec = pytest.mark.skipif(NO_MPIEXEC, reason="the mpich wheel has none for this system")
needs_networks = pytest.mark.skipif(
    not can_make_networks(), reason="no network namespaces can be made here"
)


@pytest.fixture(scope="module")
def machine():
    machine = one_machine()
    yield machine
    machine.close()


@pytest.fixture
def pair():
    machines = two_machines()
    yield machines
    for machine in machines:
        machine.close()


def read(folder: Path) -> list:
    """What each process left, by rank."""
    files = sorted(folder.glob("*.json"))
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def twin(tmp_path_factory, machine):
    """What `launch` gives when it starts the ranks itself, as it does among stray variables."""
    folder = tmp_path_factory.mktemp("python")
    out = finish(machine.start(sys.executable, SCRIPT, "train", folder, **STRAY))
    assert out.count("[rank 1] trained on rank 1") == 2
    (result,) = read(folder)
    assert len(result["losses"]) == 2
    assert all(len(losses) == 6 for losses in result["losses"])
    assert result["losses"][0] != result["losses"][1]  # each rank has its own data
    assert result["weights"][0] == result["weights"][1]
    assert result["state"] == [[["a", "b"]] * 2, [["c"]] * 2]
    assert [row[:2] for row in result["rows"]] == [[r, s] for r in (0, 1) for s in range(6)]
    return result


def check_same(folder: Path, out: str, twin: dict, **but):
    assert read(folder) == [{**twin, **but}] * 2, out  # on every rank, exactly
    assert len(re.findall("trained on rank 1", out)) == 2, out
    assert "[rank 1] trained" not in out  # prints go straight out
    assert "steps rank 0: 6/6" in out
    assert "steps rank 1" not in out  # one rank alone shows progress


def test_torchrun(machine, tmp_path, twin):
    command = [*ONE_AGENT, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    out = finish(machine.start(*command, SCRIPT, "train", tmp_path, MORE="1"))
    check_same(tmp_path, out, twin)
    note = "3 workers asked for, 2 ranks started by torchrun: 2 ranks"
    assert out.count(note) == 1, out  # by one rank


@pytest.mark.parametrize("through", ["torchrun", pytest.param("mpirun", marks=needs_mpiexec)])
def test_accelerate(machine, tmp_path, twin, through):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    # on CPUs accelerate starts several processes with mpirun only
    how = ["--multi_gpu"] if through == "torchrun" else ["--cpu", "--mpirun_hostfile", hosts]
    out = finish(machine.start(*ACCELERATE, *how, SCRIPT, "train", tmp_path))
    check_same(tmp_path, out, twin)


@needs_mpiexec
def test_mpiexec(machine, tmp_path, twin):
    temp = tmp_path / "temp"
    temp.mkdir()
    # a shell stands between: the ranks have different parents
    script = f"{sys.executable} {SCRIPT} train {tmp_path}; exit $?"
    out = finish(machine.start(*MPIEXEC, "sh", "-c", script, TMPDIR=str(temp)))
    check_same(tmp_path, out, twin)
    assert list(temp.iterdir()) == []


@needs_networks
@pytest.mark.parametrize("address", [{"SLURM_STEP_NODELIST": "no-such-host"}, {}])
def test_ranks_on_one_machine_listen_on_loopback_only(machine, tmp_path, address):
    """As srun would start them, simulated by its variables; nodes named, and not."""
    environ = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "TMPDIR": str(tmp_path),
        **address,
    }
    processes = [
        machine.start(
            *(sys.executable, SCRIPT, "busy", tmp_path),
            **{**environ, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        until(lambda: all((tmp_path / f"busy{rank}").exists() for rank in range(2)))
        lines = finish(machine.start("ss", "--listening", "--tcp", "--numeric", "--no-header"))
        addresses = {line.split()[3].rsplit(":", 1)[0] for line in lines.splitlines()}
        assert addresses == {"127.0.0.1"}, lines  # rank 0's store, and gloo
        assert not list(tmp_path.glob("helpers-*"))
    finally:
        for process in processes:
            end(process)
            process.communicate()


@needs_networks
def test_two_machines_with_srun_simulated_by_its_variables(pair, tmp_path, twin):
    """No Slurm here: only what srun would set, on two networks that meet by a cable."""
    processes = []
    for rank, machine in enumerate(pair):
        environ = {
            "SLURM_JOB_ID": "77",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_STEP_NODELIST": "10.77.0.[1-2]",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": "0",
        }
        processes.append(machine.start(sys.executable, SCRIPT, "train", tmp_path, **environ))
    out = "".join(finish(process) for process in processes)
    check_same(tmp_path, out, twin, local_ranks=[0, 0])


@needs_networks
def test_two_machines_with_torchrun(pair, tmp_path, twin):
    agents = two_agents(pair, SCRIPT, "train", tmp_path, OMP_NUM_THREADS=None)
    outs = [finish(agent) for agent in agents]
    check_same(tmp_path, "".join(outs), twin, local_ranks=[0, 0])
    assert all(out.count("trained on rank") == 2 for out in outs)  # one rank on each
    for out in outs:  # with all cores; the second of its two calls keeps the function's own 1
        assert re.findall(r"threads: (\d+)", out) == [str(cores()), "1"]


def test_a_complaint_about_another_rank_waits_for_that_rank_s_report(monkeypatch):
    """Without a report, that rank was killed; with one, the complaint is no news."""

    def complains(worker):
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(member, "COMPLAINT_SECONDS", 0.01)
    kinds = []
    for reported in (False, True):
        store = dist.HashStore()
        watch, one = Watch((store,) * 3, 1, 2, None), object.__new__(member.Member)
        one.rank = 1
        if reported:
            watch.decided.set()
        assert one.answer(None, complains, {}, member.Notes(1, None), watch) is None
        told = json.loads(store.get("outcome"))
        kinds.append((told["kind"], told["rank"]))
        assert "Connection closed by peer" in told["headline"]
    assert kinds == [("died", None), ("exception", 1)]


def test_a_call_runs_with_numbers_of_its_own_and_is_over_after_it():
    """While it runs, a `launch` inside it starts ranks of its own."""
    store, one, seen = dist.HashStore(), object.__new__(member.Member), []
    one.rank, kept = 0, torch.get_rng_state()
    torch.manual_seed(0)
    try:
        one.answer(
            None,
            lambda worker: seen.append((one.running, torch.initial_seed() == 0)),
            {},
            member.Notes(0, None),
            Watch((store,) * 3, 0, 1, None),
        )
    finally:
        torch.set_rng_state(kept)
    assert seen == [(True, False)]
    assert not one.running


def test_the_culprit_alone_shows_its_traceback():
    for rank, mine in ((1, True), (0, False)):
        one = object.__new__(member.Member)
        one.rank, one.error = rank, ValueError("so")
        report = {"rank": 1, "kind": "exception", "headline": "rank 1 raised", "traceback": "deep"}
        with pytest.raises(WorkerError) as caught:
            one.fail(report)
        assert ("deep" in str(caught.value)) == mine
        assert (caught.value.__cause__ is one.error) == mine
        assert ("That rank has printed its traceback" in str(caught.value)) != mine


@pytest.mark.parametrize("made", [True, False])
def test_only_a_process_group_of_our_own_is_destroyed(monkeypatch, made):
    """The script's own is still the script's."""
    ended, one = [], object.__new__(member.Member)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ended.append(True))
    one.failure, one.pid, one.store = "", os.getpid(), dist.HashStore()
    one.rank, one.world_size, one.made_group = 0, 1, made
    one.leave()
    assert ended == [True] * made


@needs_mpiexec
def test_a_launch_in_a_rank_starts_its_own_ranks(machine, tmp_path):
    out = finish(machine.start(*MPIEXEC, sys.executable, SCRIPT, "inside", tmp_path))
    child, inner = [[0, 2], [1, 2]], [[rank, 3, "inner"] for rank in range(3)]
    assert read(tmp_path) == [[child, inner]] * 2, out


def test_mpiexec_on_several_machines_asks_where_rank_0_is(tmp_path):
    environ = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
    env = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[4]), **environ}
    command = [sys.executable, str(SCRIPT), "child", str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "mpiexec -genv MASTER_ADDR node1 -genv MASTER_PORT 29500" in done.stderr


def test_a_copy_shares_no_memory_and_leaves_no_descriptor():
    before, large = len(os.listdir("/proc/self/fd")), torch.ones(1 << 20)
    copy = member.copied({"large": large}, {})["large"]
    large.zero_()
    assert copy.all()
    del copy  # its memory has a descriptor of its own
    assert len(os.listdir("/proc/self/fd")) == before
