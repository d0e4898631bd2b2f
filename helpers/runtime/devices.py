"""Choose the cores and GPUs of this machine for the ranks."""

import os

import torch


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


_told = False  # has the line about too few GPUs been printed?
