"""Was this process started as one rank of many, and by what? Where do those ranks meet?

Only what a launcher itself sets for each of its ranks counts. RANK and WORLD_SIZE alone do not:
they linger in shells, and the ranks of `launch` carry them for libraries that look there. A Slurm
allocation does not either: a shell or a notebook inside one is nobody's rank.
"""

import os
import re
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass

INSIDE = "HELPERS_INSIDE"  # environment: which start of a launcher a rank, or its child, stems from
PORTS = range(15000, 30000)  # below those that systems hand out by themselves


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which rank a launcher made of this process.

    Attributes:
        launcher: its name, as the reader typed it.
        local_size: ranks on this machine; None where the launcher does not say.
        start: names this start of the launcher; inherited by whatever the rank starts.
        address, port: where rank 0 can be reached; None where nothing says it.
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
    """This process's place among a launcher's ranks; None where `launch` is to start its own.

    None too in an interactive session, and in whatever a rank that already joined has started.
    """
    if interactive():
        return None
    found = read_place(environ)
    return None if found and environ.get(INSIDE) == found.start else found


def mark(environ: Mapping[str, str] = os.environ) -> str:
    """What a rank carries as INSIDE, so that a `launch` in it or its children starts its own."""
    found = read_place(environ)
    return found.start if found else "launch"


def interactive() -> bool:
    """Does a person type here, in a notebook or at a prompt?"""
    ipython = sys.modules.get("IPython")
    return bool(
        hasattr(sys, "ps1")
        or sys.flags.interactive
        or (ipython is not None and ipython.get_ipython() is not None)
    )


def read_place(environ: Mapping[str, str]) -> Place | None:
    # The innermost first: torchrun is often started by srun, and mpiexec by it as well.
    for read in (read_torchrun, read_hydra, read_openmpi, read_slurm):
        if found := read(environ):
            return found
    return None


def read_torchrun(environ) -> Place | None:
    """torchrun, and `accelerate launch` on GPUs, which is torchrun inside."""
    if "TORCHELASTIC_RUN_ID" not in environ or "RANK" not in environ:
        return None
    local_size, world_size = int(environ["LOCAL_WORLD_SIZE"]), int(environ["WORLD_SIZE"])
    return Place(
        launcher="torchrun",
        rank=int(environ["RANK"]),
        world_size=world_size,
        local_rank=int(environ["LOCAL_RANK"]),
        local_size=local_size,
        one_machine=local_size == world_size,
        start=environ.get("TORCHELASTIC_ERROR_FILE") or environ["TORCHELASTIC_RUN_ID"],
        address=environ["MASTER_ADDR"],
        port=int(environ["MASTER_PORT"]),
    )


def read_hydra(environ) -> Place | None:
    """mpiexec of MPICH and of Intel MPI. srun too may set PMI_RANK, but never MPI_LOCALRANKID."""
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return read_mpi(environ, names, environ.get("PMI_PORT") or environ.get("PMI_FD", ""))


def read_openmpi(environ) -> Place | None:
    kinds = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    names = tuple(f"OMPI_COMM_WORLD_{kind}" for kind in kinds)
    return read_mpi(environ, names, environ.get("PMIX_NAMESPACE", ""))


def read_mpi(environ, names, start: str) -> Place | None:
    if not all(name in environ for name in names):
        return None
    rank, world_size, local_rank, local_size = (int(environ[name]) for name in names)
    return Place(
        launcher="mpiexec",
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_size=local_size,
        one_machine=local_size == world_size,
        start=f"mpiexec {start} {rank}",
        address=environ.get("MASTER_ADDR"),
        port=int(environ.get("MASTER_PORT", PORTS[0])),
    )


def read_slurm(environ) -> Place | None:
    """srun with more than one task.

    The shell of an `salloc` and the script of an `sbatch` are steps of one task. A shell that
    `srun --pty` opened carries the variables of a task, but has a terminal to read from.
    """
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS")
    if not all(name in environ for name in names) or int(environ["SLURM_STEP_NUM_TASKS"]) < 2:
        return None
    if "SLURM_PTY_PORT" in environ and sys.stdin is not None and sys.stdin.isatty():
        return None
    job, step = environ.get("SLURM_JOB_ID", "0"), environ["SLURM_STEP_ID"]
    port = PORTS[(int(job) * 31 + int(step)) % len(PORTS)]
    nodes = environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_NODELIST", ""))
    return Place(
        launcher="srun",
        rank=int(environ["SLURM_PROCID"]),
        world_size=int(environ["SLURM_STEP_NUM_TASKS"]),
        local_rank=int(environ["SLURM_LOCALID"]),
        local_size=None,
        one_machine=environ.get("SLURM_STEP_NUM_NODES") == "1",
        start=f"srun {job}.{step}",
        address=environ.get("MASTER_ADDR") or first_host(nodes),
        port=int(environ.get("MASTER_PORT", port)),
    )


def first_host(nodes: str) -> str | None:
    """The first of Slurm's list of machines: `gpu[03-07,12],login` begins with `gpu03`.

    Brackets may come more than once in a name: `rack[1-2]node[5,8]` begins with `rack1node5`.
    """
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)[0]
    return re.sub(r"\[([^-,\]]*)[^\]]*\]", r"\1", name) or None


def interface_towards(address: str, port: int) -> str | None:
    """The network interface whose address this machine shows to `address`; None if unknown.

    gloo listens on the address that the machine's own name stands for, which on many systems is
    a loopback one that no other machine can reach. Looks up a route, and sends nothing. Linux.
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
            except OSError:  # an interface with no address
                continue
            if answer[20:24] == mine:
                return name
    return None
