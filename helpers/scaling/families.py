"""Three families of models at equal compute: Transformer, Mamba-2, and a hybrid of both.

    python -m helpers.scaling.families          continue, and write families.csv beside this file
    python -m helpers.scaling.families --dry    list how many runs are left

Each size has one budget: exact FLOPs, as `models.counts` has them. All three families spend it on
the same text, with three seeds. Learning rates are tuned for each family at two sizes, and follow a
power of the width, as in the sweep of week 2. `design.model_of` has the families.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student_t

from helpers.models.counts import flops_per_token
from helpers.scaling.design import BATCH, FAMILIES, LENGTH, Run, model_of, rate_for
from helpers.scaling.sweep import Study

TABLE = Path(__file__).with_name("families.csv")
# (width, layers, heads) of the transformer, and exact FLOPs: 20 to 218 thousand parameters. In the
# sweep of week 2, the best budgets of these sizes are one to three times as large.
SIZES = (
    ((24, 2, 2), 1e11),
    ((32, 3, 2), 2.4e11),
    ((48, 3, 3), 6e11),
    ((64, 4, 4), 1.4e12),
)
SEEDS = 3
TUNED = ((24, 2, 2), (48, 3, 3))
TUNING_STEPS = 300
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)


def family_tuning() -> list[Run]:
    """List the tuning runs: for each family a grid of learning rates at two sizes."""
    return [
        Run(phase="tuning", family=f, width=w, layers=n, heads=h, steps=TUNING_STEPS, rate=rate)
        for f, (w, n, h), rate in itertools.product(FAMILIES, TUNED, RATES)
    ]


def family_runs(rows: Iterable[dict]) -> list[Run]:
    """List the runs at equal compute, the longest first, with rates from the tuned rows."""
    rows, runs = list(rows), []
    for family in FAMILIES:
        scale, power = rate_for(row for row in rows if row["family"] == family)
        for (width, layers, heads), budget in SIZES:
            config = model_of(width, layers, heads, family)
            steps = round(budget / (flops_per_token(config, LENGTH) * BATCH * LENGTH))
            size = {"width": width, "layers": layers, "heads": heads, "steps": steps}
            size |= {"rate": float(f"{scale * width**power:.3g}"), "budget": budget}
            runs += [
                Run(phase="equal compute", family=family, **size, seed=seed)
                for seed in range(SEEDS)
            ]
    return sorted(runs, key=lambda run: -run.budget)


STUDY = Study(
    command="python -m helpers.scaling.families",
    about="Three families of models at equal compute.",
    table=TABLE,
    tuning=family_tuning,
    runs=family_runs,
    sequences=2048,
)


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


if __name__ == "__main__":
    STUDY.main()
