"""Find out which launcher made this process a rank, and where the ranks can meet.

Only variables that a launcher sets for each of its ranks count. RANK and WORLD_SIZE alone do not:
they linger in shells, and the ranks of `launch` carry them for libraries. A Slurm allocation alone
does not count either: a shell or a notebook inside an allocation is not a rank.
"""

import os
import re
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from helpers.runtime.screen import shell

INSIDE = "HELPERS_INSIDE"  # environment of a rank and its children: which start they belong to
UNSET = (
    "Other variables of a launcher are set: start this script with torchrun, srun or mpiexec, or "
    "unset them."
)
PORTS = range(15000, 30000)  # below the ports that systems give out by themselves


@dataclass(frozen=True, kw_only=True)
class Place:
    """This process's place among the ranks of a launcher.

    Attributes:
        launcher: its name, as the reader typed it.
        local_size: the number of ranks on this machine; None if the launcher does not set it.
        start: names this start of the launcher; every child of a rank inherits it.
        address, port: where rank 0 listens; None if no variable names it.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_size: int | None
    one_machine: bool
    start: str
    address: str | None = None
    port: int | None = None


def place(environ: Mapping[str, str] = os.environ) -> Place | None:
    """Return this process's place among a launcher's ranks; None if `launch` must start its own.

    It is also None in an interactive session, and in a child of a rank that has joined.
    """
    if interactive():
        return None
    found = read_place(environ)
    return None if found and environ.get(INSIDE) == found.start else found


def mark(environ: Mapping[str, str] = os.environ) -> str:
    """Return the value of INSIDE for a rank, so that a `launch` below it starts its own ranks."""
    found = read_place(environ)
    return found.start if found else "launch"


def interactive() -> bool:
    """Does a person type commands here, in a notebook or at a prompt?"""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or shell() is not None


def read_place(environ: Mapping[str, str]) -> Place | None:
    # The innermost launcher first: srun often starts torchrun or mpiexec.
    for read in (read_torchrun, read_hydra, read_openmpi, read_slurm):
        if found := read(environ):
            return found
    return None


def number(environ: Mapping[str, str | int], name: str) -> int:
    """Read a whole number. Raises ValueError: it is missing, or something else."""
    if name not in environ:
        raise ValueError(f"{name} is missing. {UNSET}")
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} is {environ[name]!r}, not a whole number. {UNSET}") from None


def read_torchrun(environ) -> Place | None:
    """Read the variables of torchrun; `accelerate launch` on GPUs is torchrun inside."""
    if "TORCHELASTIC_RUN_ID" not in environ or "RANK" not in environ:
        return None
    local_size, world_size = number(environ, "LOCAL_WORLD_SIZE"), number(environ, "WORLD_SIZE")
    if "MASTER_ADDR" not in environ:
        raise ValueError(f"MASTER_ADDR is missing. {UNSET}")
    return Place(
        launcher="torchrun",
        rank=number(environ, "RANK"),
        world_size=world_size,
        local_rank=number(environ, "LOCAL_RANK"),
        local_size=local_size,
        one_machine=local_size == world_size,
        start=environ.get("TORCHELASTIC_ERROR_FILE") or environ["TORCHELASTIC_RUN_ID"],
        address=environ["MASTER_ADDR"],
        port=number(environ, "MASTER_PORT"),
    )


def read_hydra(environ) -> Place | None:
    """Read MPICH's and Intel MPI's variables. srun may set PMI_RANK, but never MPI_LOCALRANKID."""
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return read_mpi(environ, names, environ.get("PMI_PORT") or environ.get("PMI_FD", ""))


def read_openmpi(environ) -> Place | None:
    kinds = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    names = tuple(f"OMPI_COMM_WORLD_{kind}" for kind in kinds)
    return read_mpi(environ, names, environ.get("PMIX_NAMESPACE", ""))


def read_mpi(environ, names, start: str) -> Place | None:
    if not all(name in environ for name in names):
        return None
    rank, world_size, local_rank, local_size = (number(environ, name) for name in names)
    return Place(
        launcher="mpiexec",
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_size=local_size,
        one_machine=local_size == world_size,
        start=f"mpiexec {start} {rank}",
        address=environ.get("MASTER_ADDR"),
        port=number({"MASTER_PORT": PORTS[0], **environ}, "MASTER_PORT"),
    )


def read_slurm(environ) -> Place | None:
    """Read the variables of srun with more than one task.

    The shell of an `salloc` and the script of an `sbatch` are steps of one task. The shell of an
    `srun --pty` carries the variables of a task, but it reads from a terminal.
    """
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS")
    if not all(name in environ for name in names) or number(environ, names[-1]) < 2:
        return None
    if "SLURM_PTY_PORT" in environ and sys.stdin is not None and sys.stdin.isatty():
        return None
    job, step = environ.get("SLURM_JOB_ID", "0"), environ["SLURM_STEP_ID"]
    port = PORTS[(int(job) * 31 + int(step)) % len(PORTS)]
    nodes = environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_NODELIST", ""))
    return Place(
        launcher="srun",
        rank=number(environ, "SLURM_PROCID"),
        world_size=number(environ, "SLURM_STEP_NUM_TASKS"),
        local_rank=number(environ, "SLURM_LOCALID"),
        local_size=None,
        one_machine=environ.get("SLURM_STEP_NUM_NODES") == "1",
        start=f"srun {job}.{step}",
        address=environ.get("MASTER_ADDR") or first_host(nodes),
        port=number({"MASTER_PORT": port, **environ}, "MASTER_PORT"),
    )


def first_host(nodes: str) -> str | None:
    """Return the first machine of Slurm's list: for `gpu[03-07,12],login` that is `gpu03`.

    A name may have several brackets: `rack[1-2]node[5,8]` begins with `rack1node5`.
    """
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)[0]
    return re.sub(r"\[([^-,\]]*)[^\]]*\]", r"\1", name) or None


def interface_towards(address: str, port: int) -> str | None:
    """Return the network interface that leads from this machine to `address`; None if unknown.

    By default gloo listens on the address of the machine's own name. On many systems that is a
    loopback address, which no other machine can reach. This looks up a route, and sends nothing.
    Linux.
    """
    if sys.platform != "linux":
        return None
    import fcntl

    request_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((address, port))
        except OSError:
            return None
        mine = socket.inet_aton(sock.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, request_address, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an address
                continue
            if answer[20:24] == mine:
                return name
    return None
