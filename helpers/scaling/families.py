"""Three families of models at equal compute: Transformer, Mamba-2, and a hybrid of both.

    python -m helpers.scaling.families          continue, and write families.csv beside this file
    python -m helpers.scaling.families --dry    list how many runs are left

Each size has one budget: exact FLOPs, as `models.counts` has them. All three families spend it on
the same text, with three seeds. Learning rates are tuned for each family at two sizes, and follow a
power of the width, as in the sweep of week 2.

- **transformer**: blocks of attention and an MLP, as in that sweep.
- **mamba2**: twice as many blocks, each a Mamba-2 mixer alone (Dao and Gu 2024, section 7).
- **hybrid**: the transformer's blocks, with Mamba-2 mixers in all blocks but one (as Bamba).
"""

import argparse
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student_t

from helpers.models.config import GPTConfig
from helpers.models.counts import flops_per_token
from helpers.models.ssm_settings import Mamba2Settings
from helpers.runtime.devices import cores
from helpers.scaling.design import BATCH, LENGTH, model_of, rate_for, unique_name
from helpers.scaling.sweep import carry_out
from helpers.scaling.table import append, read
from helpers.training.farm import farm

TABLE = Path(__file__).with_name("families.csv")
COMMAND = "python -m helpers.scaling.families"
FAMILIES = ("transformer", "mamba2", "hybrid")
# (width, layers, heads) of the transformer, and exact FLOPs: 20 to 218 thousand parameters. In the
# sweep of week 2, the best budgets of these sizes are one to three times as large.
SIZES = (
    ((24, 2, 2), 1e11),
    ((32, 3, 2), 2.4e11),
    ((48, 3, 3), 6e11),
    ((64, 4, 4), 1.4e12),
)
SEEDS = 3
HELD_OUT = 2048  # sequences that the final loss averages over, the same for all runs
TUNED = ((24, 2, 2), (48, 3, 3))
TUNING_STEPS = 300
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
SSM = Mamba2Settings(state=16, head=16, chunk=16)  # small, as the models are


@dataclass(frozen=True, kw_only=True)
class FamilyRun:
    """One training run, as `design.Run`, of one of the FAMILIES.

    Attributes:
        family: one of FAMILIES.
        width, layers, heads: of the transformer of this size.
        budget: exact FLOPs; 0 for a tuning run.
    """

    phase: str
    family: str
    width: int
    layers: int
    heads: int
    steps: int
    rate: float
    seed: int = 0
    budget: float = 0.0

    @property
    def name(self) -> str:
        return unique_name(self)

    @property
    def config(self) -> GPTConfig:
        return family_model(self.family, self.width, self.layers, self.heads)


def family_model(family: str, width: int, layers: int, heads: int) -> GPTConfig:
    """Return the family's model of about the transformer's size.

    Raises:
        ValueError: no such family.
    """
    shape = {"vocab": 256, "context": LENGTH, "width": width, "heads": heads, "mamba2": SSM}
    if family == "transformer":
        return model_of(width, layers, heads)
    if family == "mamba2":
        layers = 2 * layers
        return GPTConfig(**shape, layers=layers, mixer="mamba2", mlp="none", positions="none")
    if family == "hybrid":
        mixers = ["mamba2"] * layers
        mixers[layers // 2] = "attention"
        return GPTConfig(**shape, layers=layers, mixer=tuple(mixers))
    raise ValueError(f"no family {family!r}; choose one of {', '.join(FAMILIES)}")


def family_tuning() -> list[FamilyRun]:
    """List the tuning runs: for each family a grid of learning rates at two sizes."""
    return [
        FamilyRun(
            phase="tuning", family=f, width=w, layers=n, heads=h, steps=TUNING_STEPS, rate=rate
        )
        for f, (w, n, h), rate in itertools.product(FAMILIES, TUNED, RATES)
    ]


def family_runs(rows: Iterable[dict]) -> list[FamilyRun]:
    """List the runs at equal compute, the longest first, with rates from the tuned rows."""
    rows, runs = list(rows), []
    for family in FAMILIES:
        scale, power = rate_for(row for row in rows if row["family"] == family)
        for (width, layers, heads), budget in SIZES:
            config = family_model(family, width, layers, heads)
            steps = round(budget / (flops_per_token(config, LENGTH) * BATCH * LENGTH))
            runs += [
                FamilyRun(
                    phase="equal compute", family=family, width=width, layers=layers, heads=heads,
                    steps=steps, rate=float(f"{scale * width**power:.3g}"), seed=seed,
                    budget=budget,
                )
                for seed in range(SEEDS)
            ]  # fmt: skip
    return sorted(runs, key=lambda run: -run.budget)


def compare_families(path: Path = TABLE, *, workers: int | None = None, sequences: int = HELD_OUT):
    """Carry out the runs that the table lacks, and write each row at once. Returns all rows.

    Args:
        workers: processes at the same time, one thread each; by default one per core.
        sequences: how many held-out sequences each final loss averages over.

    Raises:
        FarmError: some runs failed twice; the table has the others.
    """

    def fill(wanted: list[FamilyRun]):
        there = {row["name"] for row in read(path)}
        left = [{"run": run, "sequences": sequences} for run in wanted if run.name not in there]
        farm(
            carry_out,
            left,
            workers=workers or cores(),
            done=lambda _, row: append(row, path, COMMAND),
        )

    fill(family_tuning())
    fill(family_runs(read(path)))
    return read(path)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The loss of a family less that of another, in nats a byte, at one size.

    Attributes:
        mean: over the pairs of runs with the same seed, so with the same text in the same order.
        half: half the width of the 95 % interval of the mean (Student's t). Its width shows how
            little a few seeds tell.
    """

    width: int
    mean: float
    half: float


def differences(rows: Iterable[dict], family: str, other: str) -> list[Difference]:
    """Compare two families at each size, seed by seed.

    Raises:
        ValueError: a size has fewer than two seeds that both families have.
    """
    losses = {
        (row["family"], row["width"], row["seed"]): row["loss"]
        for row in rows
        if row["phase"] == "equal compute"
    }
    found = []
    for width in sorted({key[1] for key in losses}):
        seeds = sorted(seed for name, size, seed in losses if (name, size) == (family, width))
        pairs = [
            losses[family, width, seed] - losses[other, width, seed]
            for seed in seeds
            if (other, width, seed) in losses
        ]
        if len(pairs) < 2:
            raise ValueError(
                f"width {width}: {len(pairs)} pairs of {family} and {other}; an interval needs two"
            )
        mean, half = interval(pairs)
        found.append(Difference(width=width, mean=mean, half=half))
    return found


def interval(values: Iterable[float]) -> tuple[float, float]:
    """Return the mean, and half the width of its 95 % interval."""
    values = np.asarray(list(values), dtype=float)
    error = values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(student_t.ppf(0.975, len(values) - 1) * error)


def main():
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.split("\n")[0])
    parser.add_argument("--dry", action="store_true", help="list how many runs are left, and stop")
    parser.add_argument("--workers", type=int, help="processes at the same time")
    parser.add_argument("--table", type=Path, default=TABLE, help="the file for the rows")
    options = parser.parse_args()
    if not options.dry:
        compare_families(options.table, workers=options.workers)
        return
    rows = read(options.table)
    there = {row["name"] for row in rows}
    tuning = [run for run in family_tuning() if run.name not in there]
    print(f"{len(rows)} rows in the table; {len(tuning)} tuning runs left")
    if not tuning:
        runs = family_runs(rows)
        print(f"{sum(run.name not in there for run in runs)} of {len(runs)} runs left")


if __name__ == "__main__":
    main()
