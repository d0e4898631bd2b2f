"""Run the IsoFLOP sweep: train models of several sizes, each with several budgets of compute.

    python -m helpers.scaling.sweep          continue, and write sweep.csv beside this file
    python -m helpers.scaling.sweep --dry    list how many runs are left

`design` defines the runs, `table` the file.
"""

import argparse
import json
import math
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from helpers.data.batch import Batch
from helpers.data.blocks import Blocks, pack
from helpers.data.order import Order
from helpers.data.source import Source
from helpers.models.counts import flops_per_token
from helpers.models.parameter_counts import parameters
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.runtime.devices import cores
from helpers.scaling.design import (
    BATCH,
    LENGTH,
    WARM_UP,
    Run,
    rate_for,
    sweep_runs,
    tuning_runs,
)
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
        **asdict(run),
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


def sweep(
    path: Path = TABLE,
    *,
    workers: int | None = None,
    runs: list[Run] | None = None,
    sequences: int = HELD_OUT,
):
    """Carry out the runs that the table lacks, and write each row at once. Returns all rows.

    Args:
        workers: processes at the same time, one thread each; by default one per core.
        runs: only these runs, without tuning: for your own small sweep.
        sequences: how many sequences each final loss averages over; fewer are faster and noisier.

    Raises:
        FarmError: some runs failed twice; the table has the others.
    """
    workers = workers or cores()

    def fill(wanted: list[Run]):
        there = {row["name"] for row in read(path)}
        left = [{"run": run, "sequences": sequences} for run in wanted if run.name not in there]
        farm(carry_out, left, workers=workers, done=lambda _, row: append(row, path))

    if runs is None:
        fill(tuning_runs())
        runs = sweep_runs(*rate_for(read(path)))
    fill(runs)
    return read(path)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.scaling.sweep", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--dry", action="store_true", help="list how many runs are left, and stop")
    parser.add_argument(
        "--workers", type=int, help="processes at the same time; by default one per core"
    )
    parser.add_argument("--table", type=Path, default=TABLE, help="the file for the rows")
    options = parser.parse_args()
    if not options.dry:
        sweep(options.table, workers=options.workers)
        return
    rows = read(options.table)
    there = {row["name"] for row in rows}
    tuning = [run for run in tuning_runs() if run.name not in there]
    print(f"{len(rows)} rows in the table; {len(tuning)} tuning runs left")
    if not tuning:
        scale, power = rate_for(rows)
        runs = sweep_runs(scale, power)
        left = [run for run in runs if run.name not in there]
        print(
            f"learning rate {scale:.3g} · width^{power:.2f}; {len(left)} of {len(runs)} runs left"
        )


if __name__ == "__main__":
    main()
