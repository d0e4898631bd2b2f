"""The IsoFLOP sweep: real models of several sizes, each trained with several budgets of compute.

    python -m helpers.scaling.sweep          goes on where it was; writes sweep.csv beside this file
    python -m helpers.scaling.sweep --dry    says what is left to do

Each run has a cosine schedule of its own that ends with the run (Hoffmann et al. 2022, section 3).
N counts all parameters; a budget C fixes the tokens, D = C / (6 N). Learning rates are tuned first,
for a few widths, and then follow a power of the width.
"""

import argparse
import csv
import hashlib
import itertools
import json
import math
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from helpers.data.batch import Batch
from helpers.data.blocks import Blocks, pack
from helpers.data.order import Order
from helpers.data.source import Source
from helpers.models.config import GPTConfig
from helpers.models.counts import flops_per_token, parameters
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.runtime.gpus import cores
from helpers.training.farm import farm
from helpers.training.loop import train
from helpers.training.schedule import Cosine

TABLE = Path(__file__).with_name("sweep.csv")
LENGTH = 64  # T, tokens in a sequence: bytes of text
BATCH = 16  # sequences in a step
WARM_UP = 0.05  # of the steps
HELD_OUT = 8192  # sequences that the last loss is a mean over
CURVE_HELD_OUT = 512  # and those of the losses on the way
# (width, layers, heads): 2.8 thousand to 0.9 million parameters, each about twice the one before
SHAPES = (
    (8, 1, 1),
    (16, 1, 2),
    (16, 2, 2),
    (24, 2, 2),
    (32, 3, 2),
    (48, 3, 3),
    (64, 4, 4),
    (80, 5, 5),
    (112, 6, 7),
)
BUDGETS = (4e10, 1.26e11, 4e11, 1.26e12, 4e12)  # FLOPs, as 6 N D
SIZES_A_BUDGET = 6
# Where on the row of SHAPES each budget begins: so that its optimum lies inside.
FIRST_SHAPE = (0, 1, 2, 3, 3)
TUNED = ((16, 1, 2), (32, 3, 2), (64, 4, 4))
TUNING_STEPS = 600
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
REPEATS = 4  # seeds of one run, for the spread from run to run


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training.

    Attributes:
        phase: "tuning" of the learning rate, "sweep", or "repeat" with another seed.
        width, layers, heads: of the model.
        steps: of BATCH × LENGTH tokens.
        rate: the peak of the learning rate.
        seed: of the parameters and of the order of the text.
        budget: FLOPs, as 6 N D; 0 where the steps were chosen otherwise.
    """

    phase: str
    width: int
    layers: int
    heads: int
    steps: int
    rate: float
    seed: int = 0
    budget: float = 0.0

    @property
    def name(self) -> str:
        """What tells it from the others: a hash of all that it is."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def config(self) -> GPTConfig:
        return GPTConfig(
            vocab=256, context=LENGTH, width=self.width, layers=self.layers, heads=self.heads
        )


def tuning_runs() -> list[Run]:
    """A grid of learning rates for a few widths, all equally long."""
    return [
        Run(phase="tuning", width=w, layers=n, heads=h, steps=TUNING_STEPS, rate=rate)
        for (w, n, h), rate in itertools.product(TUNED, RATES)
    ]


def rate_for(rows: Iterable[dict]) -> tuple[float, float]:
    """(a, b) of rate = a · width^b, through the best rates of the tuned widths.

    The best rate of a width is the vertex of the parabola through the lowest loss and its two
    neighbours over log(rate), so that it need not be on the grid.

    Raises:
        ValueError: fewer than two widths were tuned.
    """
    widths, best = [], []
    by_width: dict[int, list] = {}
    for row in rows:
        if row["phase"] == "tuning":
            by_width.setdefault(row["width"], []).append((math.log(row["rate"]), row["loss"]))
    for width, tried in sorted(by_width.items()):
        tried.sort()
        lowest = min(range(len(tried)), key=lambda i: tried[i][1])
        if 0 < lowest < len(tried) - 1:
            x, y = zip(*tried[lowest - 1 : lowest + 2], strict=True)
            a, b, _ = np.polyfit(x, y, 2)
            best.append(-b / (2 * a))
        else:  # the edge of the grid
            best.append(tried[lowest][0])
        widths.append(math.log(width))
    if len(widths) < 2:
        raise ValueError(f"learning rates were tuned for {len(widths)} widths; two are needed")
    slope, offset = np.polyfit(widths, best, 1)
    return math.exp(offset), float(slope)


def sweep_runs(scale: float, power: float) -> list[Run]:
    """Six sizes for each budget, and one of the runs again with other seeds.

    Args:
        scale, power: the learning rate is `scale` · width^`power`.
    """
    runs = []
    for budget, first in zip(BUDGETS, FIRST_SHAPE, strict=True):
        for width, layers, heads in SHAPES[first : first + SIZES_A_BUDGET]:
            shape = {"width": width, "layers": layers, "heads": heads}
            count = parameters(GPTConfig(vocab=256, context=LENGTH, **shape)).total
            steps = round(budget / (6 * count * BATCH * LENGTH))
            rate = float(f"{scale * width**power:.3g}")
            runs.append(Run(phase="sweep", steps=steps, rate=rate, budget=budget, **shape))
    middle = runs[2 * SIZES_A_BUDGET + 2]
    repeats = [
        Run(**{**asdict(middle), "phase": "repeat", "seed": seed}) for seed in range(1, REPEATS)
    ]
    # the longest first, so that none is left alone at the end
    return sorted(runs + repeats, key=lambda run: -run.budget)


def carry_out(worker, run: Run, sequences: int = HELD_OUT) -> dict:
    """Train and evaluate: one row of the table.

    The loss is in nats a byte, the mean over `sequences` of the held-out text, the same for all;
    `loss_error` is its standard error, from the spread over sequences. `curve` holds the losses on
    the way, as [tokens, loss], on CURVE_HELD_OUT of these sequences: those of a schedule that was
    meant to be longer.
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
        "flops": 6 * count.total * tokens,
        "exact_flops": flops_per_token(run.config, LENGTH) * tokens,
        "epochs": round(tokens / (len(blocks) * LENGTH), 3),
        "loss": round(float(losses.mean()), 6),
        "loss_error": round(float(losses.std(ddof=1)) / math.sqrt(len(losses)), 6),
        "seconds": round(time.perf_counter() - began, 1),
        "curve": json.dumps(curve, separators=(",", ":")),
    }


def spread_out(validation: Blocks, sequences: int) -> list[Batch]:
    """`sequences` of the first HELD_OUT ones, evenly apart, in batches.

    Files follow one another, and some are harder: the first few sequences alone would give
    another loss, higher by tenths of a nat, than all.
    """
    chosen = np.arange(sequences) * HELD_OUT // sequences
    return [validation.batch(chosen[i : i + 128].tolist()) for i in range(0, sequences, 128)]


def stops(steps: int) -> list[int]:
    """Where on the way to evaluate: at the end, and at each half of what is left below it."""
    found = [steps]
    while found[-1] >= 80 and len(found) < 9:
        found.append(found[-1] // 2)
    return sorted(found)


@torch.no_grad()
def sequence_losses(strategy: Single, batches: list[Batch]) -> np.ndarray:
    """The mean loss of each sequence, in float64."""
    found = []
    for batch in batches:
        batch = batch.to(strategy.device)
        logits = strategy.model(batch.tokens)  # (B, T, V)
        losses = functional.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), reduction="none"
        )
        found.append(losses.view(batch.targets.shape).double().mean(1))
    return torch.cat(found).cpu().numpy()


def read(path: Path = TABLE) -> list[dict]:
    """The rows of a table, with numbers as numbers; [] where there is none yet.

    A line that was cut off, because the writing was killed, is left out.
    """
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        lines = [line for line in file if line.endswith("\n") and not line.startswith("#")]
    rows = []
    for row in csv.DictReader(lines):
        rows.append(
            {
                key: json.loads(value) if key == "curve" else KINDS.get(key, str)(value)
                for key, value in row.items()
            }
        )
    return rows


_WHOLE = ("width", "layers", "heads", "steps", "seed", "params", "non_embedding", "tokens", "flops")
_REAL = ("rate", "budget", "epochs", "loss", "loss_error", "seconds")
KINDS = dict.fromkeys((*_WHOLE, "exact_flops"), int) | dict.fromkeys(_REAL, float)


def append(row: dict, path: Path):
    """Add one row; the first one brings the provenance and the heading. Written at once."""
    new = not path.exists() or not path.stat().st_size
    if not new:
        mend_end(path)
    with path.open("a", newline="", encoding="utf-8") as file:
        if new:
            file.writelines(f"# {line}\n" for line in provenance())
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
        file.flush()
        os.fsync(file.fileno())


def mend_end(path: Path):
    """Take away a last line that was cut off."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        path.write_bytes(whole)


def provenance() -> list[str]:
    """What the numbers depend on, in words."""
    about = pack("python", length=LENGTH).about
    return [
        "made by: python -m helpers.scaling.sweep (make sweep)",
        f"text: {about['name']}, {about['bytes']} bytes, sha256 {about['sha256']}",
        f"Python {platform.python_version()}, torch {torch.__version__}, {cores()} cores",
        f"sequences of {LENGTH} bytes, {BATCH} a step; loss in nats a byte, held out",
    ]


def sweep(
    path: Path = TABLE,
    *,
    workers: int | None = None,
    runs: list[Run] | None = None,
    sequences: int = HELD_OUT,
):
    """Carry out what is not in the table yet, and write each row as it comes. Returns all rows.

    Args:
        workers: processes at once, one thread each; as many as cores if not given.
        runs: these alone, without the tuning: for a small sweep of one's own.
        sequences: that each last loss is a mean over; fewer are faster, and noisier.

    Raises:
        FarmError: runs that failed twice; the others are in the table.
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
    parser.add_argument("--dry", action="store_true", help="say what is left to do")
    parser.add_argument("--workers", type=int, help="processes at once; one for each core")
    parser.add_argument("--table", type=Path, default=TABLE, help="where the rows go")
    options = parser.parse_args()
    if not options.dry:
        sweep(options.table, workers=options.workers)
        return
    rows = read(options.table)
    there = {row["name"] for row in rows}
    tuning = [run for run in tuning_runs() if run.name not in there]
    print(f"{len(rows)} rows; {len(tuning)} runs of tuning left")
    if not tuning:
        scale, power = rate_for(rows)
        runs = sweep_runs(scale, power)
        left = [run for run in runs if run.name not in there]
        print(f"learning rate {scale:.3g} · width^{power:.2f}; {len(left)} of {len(runs)} left")


if __name__ == "__main__":
    main()
