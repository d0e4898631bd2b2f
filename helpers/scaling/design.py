"""The runs of the IsoFLOP sweep: sizes, budgets, and the learning rate for each size.

Each run has its own cosine schedule, which ends with the run (Hoffmann et al. 2022, section 3). N
counts all parameters. A budget C fixes the tokens: D = C / (6 N). Learning rates are tuned for a
few widths; the others follow a power of the width.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np

from helpers.models.config import GPTConfig
from helpers.models.counts import parameters
from helpers.models.settings import Mamba2Settings
from helpers.scaling.law import FLOPS

LENGTH = 64  # T, tokens in a sequence; a token is a byte of text
BATCH = 16  # sequences in a step
WARM_UP = 0.05  # of the steps
# (width, layers, heads): 2.9 thousand to 0.9 million parameters, each 1.4 to 2.6 times as many as
# the one before
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
# The first shape of each budget, chosen so that the best size is not at the edge.
FIRST_SHAPE = (0, 1, 2, 3, 3)
TUNED = ((16, 1, 2), (32, 3, 2), (64, 4, 4))
TUNING_STEPS = 600
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
REPEATS = 4  # seeds of one run, to measure the spread from seed to seed
FAMILIES = ("transformer", "mamba2", "hybrid")
SSM = Mamba2Settings(state=16, head=16, chunk=16)  # small, as the models are


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run.

    Attributes:
        phase: "tuning" of the learning rate, "sweep", "repeat" with another seed, "equal compute".
        family: one of FAMILIES; "" in a study of transformers alone.
        width, layers, heads: of the model, or of the transformer of its size.
        steps: of BATCH × LENGTH tokens each.
        rate: the peak of the learning rate.
        seed: of the parameters and of the order of the text.
        budget: FLOPs; 0 for a run whose steps were chosen otherwise.
    """

    phase: str
    family: str = ""
    width: int
    layers: int
    heads: int
    steps: int
    rate: float
    seed: int = 0
    budget: float = 0.0

    @property
    def settings(self) -> dict:
        """All settings that the study chooses, by name: columns of its table."""
        return {name: value for name, value in asdict(self).items() if name != "family" or value}

    @property
    def name(self) -> str:
        """A unique name: a hash of all settings."""
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def config(self) -> GPTConfig:
        return model_of(self.width, self.layers, self.heads, self.family or "transformer")


def model_of(width: int, layers: int, heads: int, family: str = "transformer") -> GPTConfig:
    """Return the configuration of a GPT on bytes, or the family's model of about its size.

    - **transformer**: blocks of attention and an MLP.
    - **mamba2**: twice as many blocks, each a Mamba-2 mixer alone (Dao and Gu 2024, section 7).
    - **hybrid**: the transformer's blocks, with Mamba-2 mixers in all blocks but one (as Bamba).

    Raises:
        ValueError: no such family.
    """
    shape = {"vocab": 256, "context": LENGTH, "width": width, "heads": heads}
    if family == "transformer":
        return GPTConfig(**shape, layers=layers)
    if family == "mamba2":
        alone = {"mixer": "mamba2", "mlp": "none", "positions": "none", "mamba2": SSM}
        return GPTConfig(**shape, **alone, layers=2 * layers)
    if family == "hybrid":
        mixers = ["mamba2"] * layers
        mixers[layers // 2] = "attention"
        return GPTConfig(**shape, layers=layers, mixer=tuple(mixers), mamba2=SSM)
    raise ValueError(f"no family {family!r}; choose one of {', '.join(FAMILIES)}")


def tuning_runs() -> list[Run]:
    """List the tuning runs: a grid of learning rates for a few widths, equally many steps."""
    return [
        Run(phase="tuning", width=w, layers=n, heads=h, steps=TUNING_STEPS, rate=rate)
        for (w, n, h), rate in itertools.product(TUNED, RATES)
    ]


def rate_for(rows: Iterable[dict]) -> tuple[float, float]:
    """Fit rate = a · width^b through the best rates of the tuned widths. Returns (a, b).

    The best rate of a width is the vertex of a parabola over log(rate). The parabola goes through
    the lowest loss and its two neighbours, so the best rate may be between two rates of the grid.

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
        raise ValueError(f"learning rates were tuned for {len(widths)} widths: two are needed")
    slope, offset = np.polyfit(widths, best, 1)
    return math.exp(offset), float(slope)


def run_for(budget: float, shape: tuple[int, int, int], scale: float, power: float) -> Run:
    """Return the run that spends `budget` FLOPs, as 6 N D, on a model of (width, layers, heads).

    Args:
        scale, power: the learning rate is `scale` · width^`power`.
    """
    width, layers, heads = shape
    rate = float(f"{scale * width**power:.3g}")
    steps = round(budget / (FLOPS * parameters(model_of(*shape)).total * BATCH * LENGTH))
    size = {"width": width, "layers": layers, "heads": heads}
    return Run(phase="sweep", **size, steps=steps, rate=rate, budget=budget)


def sweep_runs(rows: Iterable[dict]) -> list[Run]:
    """List the runs: six sizes for each budget, and one run repeated with other seeds.

    Args:
        rows: of the tuning runs, which give the learning rates.
    """
    law = rate_for(rows)
    runs = [
        run_for(budget, shape, *law)
        for budget, first in zip(BUDGETS, FIRST_SHAPE, strict=True)
        for shape in SHAPES[first : first + SIZES_A_BUDGET]
    ]
    middle = runs[2 * SIZES_A_BUDGET + 2]
    repeats = [replace(middle, phase="repeat", seed=seed) for seed in range(1, REPEATS)]
    # the longest first: at the end no long run keeps the other processes waiting
    return sorted(runs + repeats, key=lambda run: -run.budget)
