"""Run the IsoFLOP sweep: train models of several sizes, each with several budgets of compute.

    python -m helpers.scaling.sweep          continue, and write sweep.csv beside this file
    python -m helpers.scaling.sweep --dry    list how many runs are left

`design` defines the runs, `table` the file.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from helpers.data.batch import Batch
from helpers.data.blocks import Blocks, pack
from helpers.data.order import Order
from helpers.data.source import Source
from helpers.models.counts import flops_per_token, parameters
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.runtime.devices import cores
from helpers.scaling.design import BATCH, LENGTH, WARM_UP, Run, sweep_runs, tuning_runs
from helpers.scaling.law import FLOPS
from helpers.scaling.table import TABLE, append, read
from helpers.training.farm import farm
from helpers.training.loop import train
from helpers.training.schedule import Cosine

HELD_OUT = 8192  # sequences that the final loss averages over
CURVE_HELD_OUT = 512  # sequences that each loss during the run averages over


def carry_out(worker, run: Run, sequences: int = HELD_OUT) -> dict:
    """Train and evaluate one run. Returns a row of the table.

    `loss` is in nats a byte: the mean over `sequences` held-out sequences, the same for all runs.
    `loss_error` is its standard error over the sequences. `curve` lists [tokens, loss] during the
    run, on CURVE_HELD_OUT of these sequences. There the learning rate is still high: these losses
    are those of a run whose schedule is longer.
    """
    blocks = pack("python", length=LENGTH)
    validation = pack("python", length=LENGTH, split="validation")
    source = Source(blocks, Order(len(blocks), BATCH, seed=run.seed))
    strategy = Single(
        run.config, run.seed, optimizer=OptimizerConfig(lr=run.rate), device=worker.device
    )
    schedule = Cosine(peak=run.rate, steps=run.steps, warmup=round(WARM_UP * run.steps))
    began, done, curve = time.perf_counter(), 0, []
    for stop in stops(run.steps):
        train(strategy, source, steps=stop, first=done, schedule=schedule)
        done = stop
        if stop < run.steps:
            few = spread_out(validation, CURVE_HELD_OUT)
            curve.append([stop * BATCH * LENGTH, round(sequence_losses(strategy, few).mean(), 5)])
    losses = sequence_losses(strategy, spread_out(validation, sequences))
    count, tokens = parameters(run.config), run.steps * BATCH * LENGTH
    return {
        "name": run.name,
        **run.settings,
        "params": count.total,
        "non_embedding": count.non_embedding,
        "tokens": tokens,
        "flops": FLOPS * count.total * tokens,
        "exact_flops": flops_per_token(run.config, LENGTH) * tokens,
        "epochs": round(tokens / (len(blocks) * LENGTH), 3),
        "loss": round(float(losses.mean()), 6),
        "loss_error": round(float(losses.std(ddof=1)) / math.sqrt(len(losses)), 6),
        "seconds": round(time.perf_counter() - began, 1),
        "curve": json.dumps(curve, separators=(",", ":")),
    }


def spread_out(validation: Blocks, sequences: int) -> list[Batch]:
    """Return `sequences` of the first HELD_OUT sequences, equally spaced, in batches.

    Neighbouring sequences come from the same file, and some files are harder. The loss on the first
    few sequences alone would be higher by tenths of a nat.
    """
    chosen = np.arange(sequences) * HELD_OUT // sequences
    return [validation.batch(chosen[i : i + 128].tolist()) for i in range(0, sequences, 128)]


def stops(steps: int) -> list[int]:
    """List the steps at which to evaluate: the last step, half of it, half of that, …"""
    found = [steps]
    while found[-1] >= 80 and len(found) < 9:
        found.append(found[-1] // 2)
    return sorted(found)


@torch.no_grad()
def sequence_losses(strategy: Single, batches: list[Batch]) -> np.ndarray:
    """Return the mean loss of each sequence, in float64."""
    found = []
    for batch in batches:
        batch = batch.to(strategy.device)
        logits = strategy.model(batch.tokens)  # (B, T, V)
        losses = functional.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), reduction="none"
        )
        found.append(losses.view(batch.targets.shape).double().mean(1))
    return torch.cat(found).cpu().numpy()


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table of runs, and the command that fills it.

    Attributes:
        command: what a person types; the table's head has it, too.
        about: one line.
        table: the file for the rows.
        tuning: lists the runs that tune the learning rate.
        runs: lists the other runs, from the rows of the tuning.
        sequences: how many held-out sequences each final loss averages over.
    """

    command: str
    about: str
    table: Path
    tuning: Callable[[], list[Run]]
    runs: Callable[[list[dict]], list[Run]]
    sequences: int

    def fill(self, path: Path, runs: list[Run], workers: int | None, sequences: int):
        """Carry out the runs that the table lacks, and write each row at once."""
        tasks = [{"run": run, "sequences": sequences} for run in missing(path, runs)]
        rows = {"done": lambda _, row: append(row, path, self.command)}
        farm(carry_out, tasks, workers=workers or cores(), **rows)

    def carry_out(self, path: Path | None = None, *, workers: int | None = None) -> list[dict]:
        """Tune, and carry out all runs that the table lacks. Returns all rows."""
        path = path or self.table
        self.fill(path, self.tuning(), workers, self.sequences)
        self.fill(path, self.runs(read(path)), workers, self.sequences)
        return read(path)

    def main(self):
        """The command: fill the table, or say how many runs are left."""
        parser = argparse.ArgumentParser(prog=self.command, description=self.about)
        parser.add_argument("--dry", action="store_true", help="list how many runs are left")
        parser.add_argument(
            "--workers", type=int, help="processes at the same time; by default one per core"
        )
        parser.add_argument("--table", type=Path, default=self.table, help="the file for the rows")
        options = parser.parse_args()
        if not options.dry:
            self.carry_out(options.table, workers=options.workers)
            return
        rows, tuning = read(options.table), missing(options.table, self.tuning())
        print(f"{len(rows)} rows in the table; {len(tuning)} tuning runs left")
        if not tuning:
            runs = self.runs(rows)
            print(f"{len(missing(options.table, runs))} of {len(runs)} runs left")


def missing(path: Path, runs: list[Run]) -> list[Run]:
    """List the runs that the table lacks."""
    there = {row["name"] for row in read(path)}
    return [run for run in runs if run.name not in there]


SWEEP = Study(
    command="python -m helpers.scaling.sweep (make sweep)",
    about="The IsoFLOP sweep: models of several sizes, each with several budgets of compute.",
    table=TABLE,
    tuning=tuning_runs,
    runs=sweep_runs,
    sequences=HELD_OUT,
)


def sweep(path: Path, *, runs: list[Run], workers: int | None = None, sequences: int = HELD_OUT):
    """Carry out your own small sweep: the runs that the table lacks. Returns all rows.

    Args:
        workers: processes at the same time, one thread each; by default one per core.
        sequences: how many sequences each final loss averages over; fewer are faster and noisier.

    Raises:
        FarmError: some runs failed twice; the table has the others.
    """
    SWEEP.fill(path, runs, workers, sequences)
    return read(path)


if __name__ == "__main__":
    SWEEP.main()
