"""Train the byte models that complete Python, and keep their weights with the package.

    python -m helpers.training.python_models python-300k

trains on one thread, for some minutes, and writes `helpers/models/trained/python-300k.npz`.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from helpers.data.blocks import Blocks, pack
from helpers.data.corpus import SPLITS
from helpers.data.order import Order
from helpers.data.source import Source, held_out
from helpers.models import trained
from helpers.models.config import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.training.loop import evaluate, train
from helpers.training.schedule import Cosine

CONTEXT = 256
HELD_OUT = 256  # sequences of the validation split


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is trained.

    Attributes:
        config: of the model.
        steps: updates of `batch` sequences each.
        lr: the highest learning rate.
    """

    config: GPTConfig
    steps: int
    batch: int
    lr: float


PLANS = {
    "python-300k": Plan(
        config=GPTConfig.preset("300k", context=CONTEXT), steps=5000, batch=8, lr=4e-3
    ),
    "python-draft": Plan(
        config=GPTConfig(context=CONTEXT, width=36, layers=2, heads=2),
        steps=6000,
        batch=8,
        lr=6e-3,
    ),
}


def train_one(plan: Plan, blocks: Blocks, validation: Blocks, log=None) -> tuple[Single, dict]:
    """Train a model; return it, and what it was trained on.

    Args:
        blocks: of the training split.
        validation: of the held-out split.
        log: called as `log(step=…, loss=…, …)` every 50 steps.
    """
    strategy = Single(plan.config, 0, optimizer=OptimizerConfig(weight_decay=0.05))
    source = Source(blocks, Order(len(blocks), plan.batch, 0))
    schedule = Cosine(peak=plan.lr, steps=plan.steps, warmup=min(100, plan.steps), final=0.02)
    history = train(strategy, source, steps=plan.steps, schedule=schedule, log=log, log_every=50)
    batches = held_out(validation, min(HELD_OUT, len(validation)), plan.batch)
    text = {key: blocks.about[key] for key in ("name", "split", "sha256", "python")}
    last = history.loss[-100:]
    return strategy, {
        "corpus": text,
        "steps": plan.steps,
        "tokens": history.rows[-1]["tokens"],
        "training loss": math.fsum(last) / len(last),
        "validation loss": evaluate(strategy, batches),
    }


def main(arguments=None):
    """Train the models of these names, and write them."""
    parser = argparse.ArgumentParser(prog="python -m helpers.training.python_models")
    parser.add_argument("names", nargs="+", choices=sorted(PLANS))
    parser.add_argument("--folder", type=Path, default=trained.FOLDER)
    parser.add_argument("--steps", type=int, help="instead of the plan's")
    given = parser.parse_args(arguments)
    for name in given.names:
        plan = PLANS[name]
        if given.steps:
            plan = Plan(config=plan.config, steps=given.steps, batch=plan.batch, lr=plan.lr)
        blocks, validation = (pack("python", CONTEXT, split=split) for split in SPLITS)
        strategy, about = train_one(plan, blocks, validation, show)
        trained.write(given.folder / f"{name}.npz", strategy.model, about)
        print(f"{name}: {about}", flush=True)


def show(step, loss, seconds, **_):
    print(f"step {step}, loss {loss:.3f} nats a byte, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
