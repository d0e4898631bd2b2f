"""Train the small Transformer on several ranks: data parallel or ZeRO, with checkpoints.

    torchrun --standalone --nproc-per-node 2 distributed.py --stage 3 --folder runs/a
    accelerate launch distributed.py --stage 3      the ranks of Accelerate, or `launch`'s own
    python distributed.py --ranks 2 --stage 3       `launch` starts the ranks

--stage 0: data parallel    1: shard the optimizer's state    2: and gradients    3: and parameters

Run the same command after a crash: the training continues from the last whole checkpoint. That run
may use another stage, and another number of ranks. `distributed_plain_torch.py` does the same
without `helpers`.

SIGTERM to a rank of a launcher is a notice: after the step, all ranks save, and leave with code 143.
A checkpoint with a changed byte is refused.

Prints lines of JSON: each step's loss, each checkpoint, the bytes that each rank holds; at the end
the tokens per second of the median step, and rank 0's peak memory. Load only your own checkpoints:
PyTorch keeps a checkpoint's table of contents as a pickle.
"""

import argparse
import json
import shutil
import signal
import statistics
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from helpers import launch
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.blocks import pack
from helpers.data.order import Order
from helpers.data.source import Source
from helpers.measure.memory import memory_of
from helpers.models.config import GPTConfig
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.state.seal import BrokenCheckpoint
from helpers.training.loop import train

CONFIG, BATCH = GPTConfig(context=64, width=64, layers=2, heads=4), 16
OPTIMIZER, WARM_UP = OptimizerConfig(lr=3e-3), 20
OWNERS = {0: Replicated, 1: Zero1, 2: Zero2, 3: Zero3}


def learning_rate(step):
    return OPTIMIZER.lr * min(1, (step + 1) / WARM_UP)


def load(folder, trainer):
    """Load the last whole checkpoint, if there is one; return the number of the next step.

    Raises BrokenCheckpoint if a file of it has changed since: a run must not start anew unnoticed.
    """
    saved = sorted(folder.glob("step-*[0-9]"))  # an unfinished one has another name
    return trainer.restore(saved[-1])["step"] if saved else 0


def save(folder, step, mesh, trainer):
    """Write a checkpoint, whole or not at all, and delete the older ones.

    Each rank writes what it holds, so no rank needs memory for the whole model.
    """
    new = folder / f"step-{step:08}"
    trainer.save(new, step=step)
    if mesh.rank == 0:  # `save` has returned, so the checkpoint is whole
        for old in folder.glob("step-*"):
            if old != new:
                shutil.rmtree(old)
        say(saved=step)


def say(**facts):
    """Print a line with one write, so that the lines of ranks do not mix."""
    print(json.dumps(facts) + "\n", end="", flush=True)


def log(step, loss, **_):
    say(step=step, loss=loss)


def run(worker, stage, steps, save_every, folder, data, dtype):
    """Train on this rank, from the last checkpoint to the last step. Return the exit code."""
    if worker.device.type == "cpu":
        torch.set_num_threads(1)
    first, notices, rates, memory = worker.rank == 0, [], [], None
    signal.signal(signal.SIGTERM, lambda *_: notices.append(1))
    mesh = make_mesh(Layout(dp=worker.world_size), worker.device)
    options = {"dtype": getattr(torch, dtype), "device": worker.device}
    options["optimizer"] = OPTIMIZER
    trainer = Recipe(owner=OWNERS[stage])(CONFIG, 0, mesh, **options)
    text = data if data in ("python", "wikitext") else [Path(data).read_text()]
    blocks = pack(text, CONFIG.context)
    source = Source(blocks, Order(len(blocks), BATCH, seed=0))
    try:
        step = load(folder, trainer)
    except BrokenCheckpoint as error:  # every rank raises it
        if first:
            say(refused=str(error))
        return 1
    how = {"schedule": learning_rate, "log": log if first else None}
    while step < steps:
        one = partial(train, trainer, source, first=step, steps=step + 1, **how)
        step += 1
        if step < steps:
            rates += one().column("tokens_per_second")
        else:  # counting memory takes time, so this step's rate does not count
            memory = memory_of(one, trainer.model, trainer.optimizer)
        noticed = torch.tensor(len(notices), device=worker.device)
        dist.all_reduce(noticed)  # so that all ranks stop after the same step
        if noticed or step == steps or step % save_every == 0:
            save(folder, step, mesh, trainer)
        if noticed and step < steps:
            if first:
                say(stopped=f"SIGTERM: {step} steps are saved; run it again to go on")
            return 128 + signal.SIGTERM
    held = {"parameters": 0, "gradients": 0, "optimizer": 0}
    for (kind, _device), size in trainer.held().items():
        held[kind] = held.get(kind, 0) + size
    say(rank=worker.rank, bytes=held)
    if rates and first:
        rate, peak = round(statistics.median(rates)), memory.device_peak or memory.peak
        most = held | {"activations": memory.activations, "all": peak}
        say(tokens_per_second=rate, per_rank=rate // worker.world_size, peak_bytes=most)
    trainer.close()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, choices=OWNERS, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--folder", type=Path, default="checkpoints")
    parser.add_argument("--data", default="python", help="or wikitext, or a file")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--ranks", type=int, default=2, help="without a launcher")
    options = vars(parser.parse_args())
    network = options["data"] == "wikitext"  # to download it, the first time
    sys.exit(max(launch(run, workers=options.pop("ranks"), network=network, **options)))
