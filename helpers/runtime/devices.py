"""What a machine offers its ranks: cores, and GPUs."""

import os

import torch


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def choose_device(workers: int, device: str | None, first_gpu: int = 0) -> tuple[str, str]:
    """`(device, backend)`: a GPU for each rank, from `first_gpu` on, or all on the CPU.

    Says once in a session that there are too few GPUs.

    Raises:
        ValueError: no such device, or too few GPUs where "cuda" is asked for.
    """
    global _told
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f'device is "cpu", "cuda" or None, not {device!r}')
    needed = first_gpu + workers
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if gpus >= needed:
        return "cuda", "cpu:gloo,cuda:nccl"
    if device == "cuda":
        raise ValueError(f"{needed} ranks need {needed} GPUs, and there are {gpus}")
    if gpus and not _told:
        _told = True
        print(f"{workers} ranks, {gpus} GPU{'s' * (gpus > 1)}: running on the CPU, with gloo")
    return "cpu", "gloo"


_told = False  # that there are fewer GPUs than ranks
