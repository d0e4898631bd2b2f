"""Start the ranks of a cluster, and send each rank its place."""

import itertools
import os
import socket
import sys

from helpers.runtime.devices import cores, make_device_files
from helpers.runtime.failure import CannotStart, ServerLost
from helpers.runtime.launcher import INSIDE, mark
from helpers.runtime.local.forkserver.processes import Processes
from helpers.runtime.local.rank import compared
from helpers.runtime.local.rank.program import Setup
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
    compare: bool = True,
    network: bool = False,
) -> Processes:
    """Start `workers` fresh ranks on this machine, and send them the way to each other.

    Args:
        device, backend: for the ranks; on "cuda", rank r has GPU `first_gpu + r`. The ranks see
            no other GPUs, so `cuda:r` is the GPU of `LOCAL_RANK` r for every library.
        method: "fork" or "spawn".
        timeout: seconds of silence that the caller treats as a hang; the backend itself waits
            longer.
        network: leave the ranks in this machine's network, and make no network for them.

    Raises:
        WorkerError: the server, the process that forks the ranks, cannot start, or is lost twice.
    """
    if sys.platform == "linux" and not os.path.isdir("/proc/self/fd"):
        raise CannotStart("/proc is not mounted; mount it: mount -t proc proc /proc")
    try:
        processes = Processes(workers, method)
    except ServerLost:  # another program killed it since the last call, so start a new one
        processes = Processes(workers, method)
    if device == "cuda":
        make_device_files()
    send_networks(processes, stay=network or sys.platform != "linux")
    path, fd, notes, key = None, None, None, new_key()
    if os.path.isdir("/proc/self/fd"):
        fd = anonymous_file()  # the ranks meet in a file without a name
        if compare and (device == "cpu" or debug):
            notes = anonymous_file()
            os.truncate(notes, workers * compared.BYTES)
    else:
        path = str(private_folder() / f"rendezvous-{next(_count)}")
    for process in processes.ranks:
        setup = Setup(
            rank=process.rank,
            world_size=workers,
            device=device,
            gpu=process.rank,
            backend=backend,
            threads=max(1, cores() // workers),
            timeout=max(1800.0, 2 * (timeout or 0)),
            rendezvous=path,
            path=list(sys.path),
            folder=working_folder(),
            environ=dict(os.environ),
            own=own_environ(process.rank, workers, device, first_gpu),
            debug=debug,
            key=key,
        )
        process.send(setup, fd=fd)
        if notes is not None:
            process.send("notes", fd=notes)
    for one in {fd, notes} - {None}:
        os.close(one)
    return processes


def send_networks(processes: Processes, stay: bool):
    """Send each rank its network: this is the first message that a rank reads."""
    others = len(processes.ranks) - 1
    if stay:
        for process in processes.ranks:
            process.send("stay", others)
        return
    one, all_others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, all_others:  # each message goes to a single reader
        for process in processes.ranks:
            role, link = ("join", all_others) if process.rank else ("make", one)
            process.send(role, others, fd=link.fileno())


def own_environ(rank: int, workers: int, device: str, first_gpu: int = 0) -> dict[str, str]:
    """Return the variables of a rank that replace the notebook's."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    shown = {}  # the notebook's GPUs
    if device == "cpu":  # otherwise each rank makes a context on GPU 0
        shown = {"CUDA_VISIBLE_DEVICES": ""}
    elif first_gpu:
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = names.split(",") if names else list(map(str, range(first_gpu + workers)))
        shown = {"CUDA_VISIBLE_DEVICES": ",".join(names[first_gpu : first_gpu + workers])}
    return shown | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        INSIDE: mark(),
        "LOCAL_WORLD_SIZE": str(workers),
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }


def working_folder() -> str | None:
    """Return the notebook's folder. A deleted folder has no name any more, but a path in /proc."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return f"/proc/{os.getpid()}/cwd" if os.path.isdir("/proc/self/fd") else None
