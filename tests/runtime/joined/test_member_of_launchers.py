"""One script under python, torchrun, accelerate, mpiexec and (simulated) srun: the same results.

The launchers listen on all interfaces, so each runs in a network of its own where one can be made.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.runtime.joined.machines import (
    BIN,
    SCRIPT,
    can_make_networks,
    end,
    finish,
    one_machine,
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


@needs_mpiexec
def test_accelerate(machine, tmp_path, twin):
    """On CPUs accelerate starts several processes by mpirun, on GPUs as torchrun does."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    how = ["--cpu", "--mpirun_hostfile", hosts]
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
def test_ranks_on_one_machine_listen_on_loopback_only(machine, tmp_path):
    """As srun would start them, simulated by its variables; the name of the node leads nowhere."""
    environ = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": "no-such-host",
        "TMPDIR": str(tmp_path),
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


@needs_mpiexec
def test_a_launch_in_a_rank_starts_its_own_ranks(machine, tmp_path):
    out = finish(machine.start(*MPIEXEC, sys.executable, SCRIPT, "inside", tmp_path))
    child, inner = [[0, 2], [1, 2]], [[rank, 3, "inner"] for rank in range(3)]
    assert read(tmp_path) == [[child, inner]] * 2, out
