"""Choose the cores and GPUs for the ranks: of `launch`, or of a launcher's machines."""

import json
import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist

from helpers.runtime.launcher import Place


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def choose_device(workers: int, device: str | None, first_gpu: int = 0) -> tuple[str, str]:
    """Return `(device, backend)`: one GPU for each rank, from `first_gpu` on, or the CPU for all.

    If a machine with GPUs has too few, the function prints a line, once in a session.

    Raises:
        ValueError: an unknown device, or too few GPUs for "cuda".
    """
    global _told
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f'device is "cpu", "cuda" or None, not {device!r}')
    needed = first_gpu + workers
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if gpus >= needed:
        return "cuda", "cpu:gloo,cuda:nccl"
    if device == "cuda":
        raise ValueError(
            f"{needed} ranks need {needed} GPUs, and there are {gpus}: "
            'use fewer ranks, or device="cpu"'
        )
    if gpus and not _told:
        _told = True
        print(f"{workers} ranks, {gpus} GPU{'s' * (gpus > 1)}: running on the CPU, with gloo")
    return "cpu", "gloo"


def make_device_files():
    """Let the driver make /dev/nvidia-uvm, before the first rank needs it.

    The first `cuInit` after a machine's start makes this file by a set-uid program. The ranks' own
    network is in a user namespace, where such a program has no rights. So a process outside of it
    calls `cuInit` first.
    """
    if os.path.exists("/dev/nvidiactl") and not os.path.exists("/dev/nvidia-uvm"):
        first = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
        subprocess.run([sys.executable, "-c", first], stderr=subprocess.DEVNULL)


_told = False  # has the line about too few GPUs been printed?


class GPUs:
    """Does every rank have a GPU to itself? All ranks get the same answer.

    There are two ways. The rank's machine shows it at least as many GPUs as it has ranks: the
    rank uses the GPU of its local rank. Or the rank sees exactly one GPU, and no other rank sees
    that GPU (Slurm's `--gpus-per-task=1`).
    """

    def __init__(self, where: Place, store: dist.Store):
        count = torch.cuda.device_count()
        only = str(torch.cuda.get_device_properties(0).uuid) if count == 1 else None
        here = {"host": socket.gethostname(), "size": where.local_size}
        mine = {**here, "count": count, "only": only}
        store.set(f"gpus/{where.rank}", json.dumps(mine))
        keys = [f"gpus/{rank}" for rank in range(where.world_size)]
        everyone = [json.loads(text) for text in store.multi_get(keys)]
        hosts = [other["host"] for other in everyone]
        lone = [other["only"] for other in everyone]

        def size(rank: dict) -> int:
            return rank["size"] or hosts.count(rank["host"])

        def able(rank: dict) -> bool:
            alone = rank["only"] is not None and lone.count(rank["only"]) == 1
            return rank["count"] >= size(rank) or alone

        self.local_size = size(mine)
        self.index = where.local_rank if count >= self.local_size else 0
        cuda = all(able(rank) for rank in everyone)
        self.device, self.backend = ("cuda", "cpu:gloo,cuda:nccl") if cuda else ("cpu", "gloo")
        self.too_few = ""
        if not cuda and any(rank["count"] for rank in everyone):
            short = next(rank for rank in everyone if not able(rank))
            self.too_few = (
                f"{size(short)} rank{'s' * (size(short) != 1)} and {short['count']} "
                f"GPU{'s' * (short['count'] != 1)} on {short['host']}: "
                "running on the CPU, with gloo"
            )
