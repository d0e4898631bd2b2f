"""What a machine offers its ranks: cores, and GPUs."""

import os

import torch


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def choose_device(workers: int, device: str | None) -> tuple[str, str]:
    """`(device, backend)`: a GPU for each rank, or all on the CPU."""
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f'device is "cpu", "cuda" or None, not {device!r}')
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if gpus >= workers:
        return "cuda", "cpu:gloo,cuda:nccl"
    if device == "cuda":
        raise ValueError(f"{workers} ranks need {workers} GPUs, and there are {gpus}")
    if gpus:
        print(f"{workers} ranks, {gpus} GPU{'s' * (gpus > 1)}: running on the CPU, with gloo")
    return "cpu", "gloo"
