"""Train the small Transformer on several ranks: data parallel or ZeRO, with checkpoints.

    torchrun --standalone --nproc-per-node 2 distributed.py --stage 3 --folder runs/a
    accelerate launch distributed.py --stage 3      the ranks of Accelerate, or `launch`'s own
    python distributed.py --ranks 2 --stage 3       `launch` starts the ranks

--stage 0: data parallel    1: shard the optimizer's state    2: and gradients    3: and parameters

Run the same command after a crash: the training continues from the last whole checkpoint. That run
may use another stage, and another number of ranks. `distributed_plain_torch.py` does the same
without `helpers`.

Prints lines of JSON: each step's loss, each checkpoint, and the bytes that each rank holds. Load
only your own checkpoints: PyTorch keeps a checkpoint's table of contents as a pickle.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch

from helpers import launch
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.blocks import pack
from helpers.data.order import Order
from helpers.data.source import Source
from helpers.models.config import GPTConfig
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.state.seal import newest
from helpers.training.loop import train

CONFIG, BATCH = GPTConfig(context=64, width=64, layers=2, heads=4), 16
OPTIMIZER, WARM_UP = OptimizerConfig(lr=3e-3), 20
OWNERS = {0: Replicated, 1: Zero1, 2: Zero2, 3: Zero3}


def learning_rate(step):
    return OPTIMIZER.lr * min(1, (step + 1) / WARM_UP)


def load(folder, trainer):
    """Load the last whole checkpoint, if there is one; return the number of the next step."""
    last = newest(folder)  # a damaged checkpoint does not count
    if last is None:
        return 0
    return trainer.restore(last)["step"]


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


def run(worker, stage, steps, save_every, folder, data, dtype):
    """Train on this rank, from the last checkpoint to the last step."""
    if worker.device.type == "cpu":
        torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size), worker.device)
    options = {"dtype": getattr(torch, dtype), "device": worker.device}
    options["optimizer"] = OPTIMIZER
    trainer = Recipe(owner=OWNERS[stage])(CONFIG, 0, mesh, **options)
    text = data if data in ("python", "wikitext") else [Path(data).read_text()]
    blocks = pack(text, CONFIG.context)
    source = Source(blocks, Order(len(blocks), BATCH, seed=0))
    first = load(folder, trainer)

    def log(step, loss, **_):
        if worker.rank == 0:
            say(step=step, loss=loss)

    while first < steps:
        last = min(steps, (first // save_every + 1) * save_every)
        train(trainer, source, first=first, steps=last, schedule=learning_rate, log=log)
        save(folder, last, mesh, trainer)
        first = last
    held = {"parameters": 0, "gradients": 0, "optimizer": 0}
    for (kind, _device), size in trainer.held().items():
        held[kind] = held.get(kind, 0) + size
    say(rank=worker.rank, bytes=held)
    trainer.close()


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
    launch(run, workers=options.pop("ranks"), **options)
