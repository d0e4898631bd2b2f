"""Start the ranks of a cluster, and tell each its place."""

import itertools
import os
import socket
import sys

from helpers.runtime.devices import cores
from helpers.runtime.failure import ServerLost
from helpers.runtime.launcher import INSIDE, mark
from helpers.runtime.local.processes import Processes, RankProcess
from helpers.runtime.local.rank import Setup
from helpers.runtime.private import anonymous_file, private_folder
from helpers.runtime.proof import new_key

_count = itertools.count()


def start_ranks(
    workers: int,
    *,
    device: str,
    backend: str,
    method: str,
    timeout: float | None,
    first_gpu: int = 0,
    debug: bool = False,
    network: bool = False,
) -> Processes:
    """`workers` fresh ranks on this machine, on their way to meet one another.

    Args:
        device, backend: what they work with; on "cuda", rank r has GPU `first_gpu + r`.
        method: "fork" or "spawn".
        timeout: seconds after which the caller takes silence for a hang; the backend itself waits
            longer.
        network: leave the ranks in this machine's network, and make none of their own.

    Raises:
        WorkerError: the process that ranks come from cannot be started, or is lost twice.
    """
    try:
        processes = Processes(workers, method)
    except ServerLost:  # it was killed since the last call, or just now: there is another
        processes = Processes(workers, method)
    send_networks(processes, stay=network or sys.platform != "linux")
    path, fd, key = None, None, new_key()
    if os.path.isdir("/proc/self/fd"):
        fd = anonymous_file()  # the ranks meet in a file that has no name
    else:
        path = str(private_folder() / f"rendezvous-{next(_count)}")
    for process in processes.ranks:
        setup = Setup(
            rank=process.rank,
            world_size=workers,
            device=device,
            gpu=first_gpu + process.rank,
            backend=backend,
            threads=max(1, cores() // workers),
            timeout=max(1800.0, 2 * (timeout or 0)),
            rendezvous=path,
            path=list(sys.path),
            folder=working_folder(),
            environ=dict(os.environ),
            own=own_environ(process.rank, workers, device),
            debug=debug,
            key=key,
        )
        send(process, setup, fd=fd)
    if fd is not None:
        os.close(fd)
    return processes


def send_networks(processes: Processes, stay: bool):
    """Tell each rank which network it is to be in: the first message that it reads."""
    others = len(processes.ranks) - 1
    if stay:
        for process in processes.ranks:
            send(process, "stay", others)
        return
    one, all_others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, all_others:  # each message on it goes to a single reader
        for process in processes.ranks:
            role, link = ("join", all_others) if process.rank else ("make", one)
            send(process, role, others, fd=link.fileno())


def send(process: RankProcess, *message, fd: int | None = None):
    try:
        process.channel.send(*message, fd=fd)
    except OSError:
        pass  # it could not start, and the server will say why


def own_environ(rank: int, workers: int, device: str) -> dict[str, str]:
    """What a rank has in its environment in place of the notebook's variables."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    # Before anything in the rank asks for GPUs: else each rank makes a context on GPU 0.
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return hidden | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        INSIDE: mark(),
        "LOCAL_WORLD_SIZE": str(workers),
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }


def working_folder() -> str | None:
    """Where the notebook is. A deleted folder has no name any more, but a way to it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return f"/proc/{os.getpid()}/cwd" if os.path.isdir("/proc/self/fd") else None
