"""The work of the benchmarks' ranks, and the start of the peers' ranks.

`spawn` imports its functions from this module. The other launchers get the same text as a cell.
"""

import os
import signal
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def all_reduce():
    """Use the process group once."""
    torch.set_num_threads(1)
    t = torch.ones(4)
    dist.all_reduce(t)
    return t[0].item()


def adamw():
    """Run one data-parallel step of a small model with AdamW. Returns the loss."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))  # 16,576 parameters
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(32, 64)  # (B, D)
    loss = F.mse_loss(model(x), x)
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    return loss.item()


def suffer(fault, culprit):
    """Run an all-reduce on all ranks; then the rank `culprit` does the deed that `fault` names."""
    note(f"started-{dist.get_rank()}", time.monotonic())
    t = torch.ones(4)
    dist.all_reduce(t)
    if fault == "work":  # until an interrupt or a signal ends it
        while True:
            dist.all_reduce(t)
            time.sleep(0.01)
    if fault == "python" and dist.get_rank() != culprit:
        return
    if dist.get_rank() == culprit:
        note("deed", time.monotonic())
        match fault:
            case "raise":
                raise ValueError("the loss is not a number")
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "collective":
                dist.recv(t, src=(culprit + 1) % dist.get_world_size())
            case "python":
                while True:
                    time.sleep(0.01)
    dist.all_reduce(t)


def note(name, value):
    """Write a note for the benchmark, in one step, because it may read at any moment."""
    path = Path(os.environ["BENCH_NOTES"], name)
    path.with_suffix(".new").write_text(str(value))
    path.with_suffix(".new").rename(path)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def spawned(rank, world_size, port, limit, fn, args):
    """Run `fn` in each process of `torch.multiprocessing.spawn`."""
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=limit),
    )
    fn(*args)
    dist.destroy_process_group()  # otherwise a rank may abort at its end


def forked(limit, fn, args):
    """Run `fn` in each process of `accelerate.notebook_launcher`."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=limit))
    fn(*args)
    dist.destroy_process_group()
