"""Only what a launcher sets for its ranks makes a rank of a process.

There is no Slurm here: srun is simulated by the variables that it sets.
"""

import socket
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.runtime import launcher
from helpers.runtime.launcher import INSIDE, first_host, mark, place

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_ERROR_FILE": "folder/attempt_0/1/error.json",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-node1-77@1",
}
ALLOCATION = {  # what a shell has inside `salloc`, or a script under `sbatch`
    "SLURM_JOB_ID": "1234",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NTASKS": "8",
    "SLURM_NODELIST": "gpu[03-04]",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}
SHELL = {**ALLOCATION, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}
SRUN = {
    **ALLOCATION,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
}


def told(environ):
    p = place(environ)
    return p and (p.launcher, p.rank, p.world_size, p.local_rank, p.local_size, p.one_machine)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, ("torchrun", 5, 8, 1, 4, False)),
        (HYDRA, ("mpiexec", 2, 4, 0, 2, False)),
        (OPENMPI, ("mpiexec", 3, 4, 3, 4, True)),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}, ("torchrun", 5, 8, 1, 8, True)),
        (SRUN, ("srun", 6, 8, 2, None, False)),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "2"}, ("srun", 6, 2, 2, None, False)),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1"}, ("srun", 6, 8, 2, None, True)),
        # one inside the other: torchrun started by srun; mpiexec, which starts a proxy by srun
        ({**SRUN, **TORCHRUN}, ("torchrun", 5, 8, 1, 4, False)),
        ({**SRUN, **HYDRA, "SLURM_STEP_NUM_TASKS": "2"}, ("mpiexec", 2, 4, 0, 2, False)),
        # srun --mpi=pmi2 sets these two as well
        ({**SRUN, "PMI_RANK": "6", "PMI_SIZE": "8"}, ("srun", 6, 8, 2, None, False)),
    ],
)
def test_each_launcher_is_known(environ, expected):
    assert told(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
        {"TORCHELASTIC_RUN_ID": "left over"},
        {"PMI_RANK": "0", "PMI_SIZE": "4"},
        {"OMPI_COMM_WORLD_RANK": "0"},
        {"SLURM_JOB_ID": "1234"},
        ALLOCATION,
        SHELL,
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
        # `accelerate launch` on CPUs with no host file starts one process, and sets these
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "True"},
    ],
)
def test_stray_variables_make_no_rank(environ):
    assert place(environ) is None


@pytest.mark.parametrize(
    ("environ", "name", "value"),
    [
        (TORCHRUN, "LOCAL_WORLD_SIZE", None),
        (TORCHRUN, "MASTER_ADDR", None),
        (TORCHRUN, "RANK", "five"),
        (HYDRA, "PMI_RANK", ""),
        (SRUN, "SLURM_LOCALID", "x"),
    ],
)
def test_variables_that_do_not_fit_are_named(environ, name, value):
    """They are left over, or set by hand; the caller would see a bare KeyError."""
    odd = {key: text for key, text in {**environ, name: value}.items() if text is not None}
    with pytest.raises(ValueError, match=rf"^{name} is .*(missing|not a whole number).*unset "):
        place(odd)


def test_a_shell_that_srun_opened_is_no_rank(monkeypatch):
    environ = {**SRUN, "SLURM_PTY_PORT": "4000"}
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert place(environ) is None
    assert told(SRUN)[:2] == ("srun", 6)  # srun without --pty, in a terminal
    monkeypatch.setattr(sys, "stdin", None)  # closed
    assert told(environ)[:2] == ("srun", 6)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    assert told(environ)[:2] == ("srun", 6)


@pytest.mark.parametrize("environ", [TORCHRUN, HYDRA, OPENMPI, SRUN])
def test_an_interactive_session_is_no_rank(environ, monkeypatch):
    ipython = SimpleNamespace(get_ipython=lambda: None)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert place(environ)
    ipython.get_ipython = lambda: "a shell"
    assert place(environ) is None
    ipython.get_ipython = lambda: None
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert place(environ) is None


def test_a_prompt_is_no_rank():
    """As `python -i` sees it."""
    code = "from helpers.runtime.launcher import place; print(place())"
    for option, expected in (([], "rank=5"), (["-i"], "None")):
        done = subprocess.run(
            [sys.executable, *option, "-c", code],
            env={**TORCHRUN, "PYTHONPATH": str(launcher.__file__.rsplit("/", 3)[0])},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        assert expected in done.stdout


@pytest.mark.parametrize("environ", [TORCHRUN, HYDRA, OPENMPI, SRUN])
def test_what_a_rank_starts_is_no_rank_of_the_same_launcher(environ):
    marked = {**environ, INSIDE: mark(environ)}
    assert place(marked) is None
    # the ranks of a `launch` in it have other ranks, and the same mark
    assert place({**marked, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}) is None


def test_another_launcher_inside_a_rank_makes_ranks():
    assert told({**TORCHRUN, INSIDE: mark({})}) == ("torchrun", 5, 8, 1, 4, False)
    assert told({**SRUN, **TORCHRUN, INSIDE: mark(SRUN)})[0] == "torchrun"
    again = {**TORCHRUN, "TORCHELASTIC_ERROR_FILE": "another/attempt_0/1/error.json"}
    assert told({**again, INSIDE: mark(TORCHRUN)})[0] == "torchrun"


@pytest.mark.parametrize("port", ["PMI_PORT", "PMI_FD"])
def test_each_mpiexec_is_another_start(port):
    """So a mark of one is no mark of the other."""
    one, other = {**HYDRA, port: "node1:4000"}, {**HYDRA, port: "node1:4001"}
    assert place(one).start != place(other).start
    assert place({**other, INSIDE: mark(one)})
    assert place({**one, "PMI_RANK": "3"}).start != place(one).start
    another = {**OPENMPI, "PMIX_NAMESPACE": "prterun-node1-78@1"}
    assert place({**another, INSIDE: mark(OPENMPI)})


def test_torchrun_without_a_file_for_errors_is_known_by_its_id():
    environ = {**TORCHRUN, "TORCHELASTIC_ERROR_FILE": ""}
    assert place(environ).start == "none"
    assert place({**environ, "TORCHELASTIC_RUN_ID": "7", INSIDE: mark(environ)}).start == "7"


@pytest.mark.parametrize(
    ("environ", "address", "port"),
    [
        (TORCHRUN, "node1", 29500),
        (HYDRA, None, 15000),
        (OPENMPI, None, 15000),
        ({**HYDRA, "MASTER_ADDR": "node2", "MASTER_PORT": "4444"}, "node2", 4444),
        ({**OPENMPI, "MASTER_ADDR": "node3"}, "node3", 15000),
    ],
)
def test_where_the_ranks_of_a_launcher_meet(environ, address, port):
    assert (place(environ).address, place(environ).port) == (address, port)


def test_each_job_of_slurm_meets_elsewhere():
    ports = {place({**SRUN, "SLURM_JOB_ID": str(1234 + job)}).port for job in range(20)}
    assert len(ports) == 20
    assert place({**SRUN, "SLURM_JOB_ID": "1235"}).start != place(SRUN).start


def test_slurm_says_where_to_meet():
    p = place(SRUN)
    assert p.address == "gpu03"
    assert p.port in launcher.PORTS
    assert place({**SRUN, "SLURM_STEP_ID": "1"}).port != p.port
    assert place({**SRUN, "SLURM_STEP_NODELIST": "gpu[04,03]"}).address == "gpu04"  # not the job's
    without = {name: value for name, value in SRUN.items() if name != "SLURM_STEP_NODELIST"}
    assert place({**without, "SLURM_NODELIST": "gpu[05-06]"}).address == "gpu05"
    assert place({**SRUN, "SLURM_JOB_ID": "999999999"}).port in launcher.PORTS
    named = place({**SRUN, "MASTER_ADDR": "head", "MASTER_PORT": "4444"})
    assert (named.address, named.port) == ("head", 4444)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[03-07,12],login", "gpu03"),
        ("gpu[12,03-07]", "gpu12"),
        ("rack[1-2]node[5,8]", "rack1node5"),
        ("a-b-c[001]", "a-b-c001"),
        ("10.0.0.[1-2]", "10.0.0.1"),
        ("node[1-2].example", "node1.example"),
        ("", None),
    ],
)
def test_first_of_slurms_machines(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.skipif(sys.platform != "linux", reason="the look-up is Linux's")
def test_the_interface_is_the_one_with_the_address(monkeypatch):
    """In any order of the interfaces: the first one may have another address."""
    every, without = socket.if_nameindex(), (99, "no-such")  # an interface without an address
    for order in ([without, *every], every[::-1]):
        monkeypatch.setattr(socket, "if_nameindex", lambda order=order: order)
        assert launcher.interface_towards("127.0.0.1", 80) == "lo"
    monkeypatch.setattr(socket, "if_nameindex", lambda: [without])
    assert launcher.interface_towards("127.0.0.1", 80) is None


def test_without_a_route_no_interface_is_known(monkeypatch):
    def refuses(*_):
        raise OSError(101, "Network is unreachable")

    one = SimpleNamespace(connect=refuses, getsockname=lambda: ("127.0.0.1", 80))
    monkeypatch.setattr(launcher.socket, "socket", lambda *_: nullcontext(one))
    assert launcher.interface_towards("10.0.0.1", 80) is None
    monkeypatch.setattr(launcher.sys, "platform", "darwin")
    one.connect = lambda _: None
    assert launcher.interface_towards("127.0.0.1", 80) is None


names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
numbers = st.lists(st.integers(0, 999), min_size=1, max_size=4)


@given(names, numbers, st.integers(1, 4), st.lists(names, max_size=2))
def test_first_of_any_machines(name, parts, width, others):
    listed = ",".join(f"{n:0{width}}-{n + 3:0{width}}" if n % 2 else f"{n:0{width}}" for n in parts)
    assert first_host(",".join([f"{name}[{listed}]", *others])) == f"{name}{parts[0]:0{width}}"
