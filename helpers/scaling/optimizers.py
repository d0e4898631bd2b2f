"""AdamW and Muon at equal compute: one small model on bytes, with an update's FLOPs counted.

    rows = curves()                       trains all runs; `figures/muon.csv` has the rows
    compared(rows)                        the best rate of each rule, and how far the losses differ

An update of Muon costs matrix products, so with the same FLOPs it makes fewer steps than AdamW.
Each run has its own cosine schedule, so only the last losses are compared: before, the rates are
still high.

Source: Liu et al. 2025, arXiv:2502.16982, section 3.2, compares the two at equal FLOPs, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from helpers.models.counts import flops_per_token
from helpers.parallel.muon.rule import MuonConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.plans.muon import hidden_matrix, newton_schulz_flops
from helpers.runtime.devices import cores
from helpers.scaling.design import BATCH, LENGTH, model_of
from helpers.scaling.families import interval
from helpers.scaling.spend import spend
from helpers.training.farm import farm

MODEL = model_of(64, 2, 4)
RULES = {"AdamW": OptimizerConfig, "Muon": MuonConfig}
RATES = {"AdamW": (4e-3, 8e-3, 1.6e-2), "Muon": (1.6e-2, 3.2e-2, 6.4e-2)}
BUDGET = 1e11  # FLOPs
STOPS = 5  # held-out losses of a run


def step_flops(rule: str) -> int:
    """FLOPs of a step: forward and backward of the batch, and the update's matrix products."""
    products = BATCH * LENGTH * flops_per_token(MODEL, LENGTH)
    if rule == "Muon":
        shapes = {name: tuple(p.shape) for name, p in MODEL.build(device="meta").named_parameters()}
        products += sum(newton_schulz_flops(s) for n, s in shapes.items() if hidden_matrix(n, s))
    return products


def carry_out(worker, rule: str, rate: float, seed: int, budget: float) -> list[dict]:
    """Train one run. Returns its rows: rule, rate, seed, step, FLOPs so far, nats a byte."""
    strategy = Single(MODEL, seed, optimizer=RULES[rule](lr=rate), device=worker.device)
    of = {"budget": budget, "each": step_flops(rule), "rate": rate, "stops": STOPS}
    return [{"rule": rule, "rate": rate, "seed": seed} | row for row in spend(strategy, seed, **of)]


def curves(
    rates: Mapping[str, Sequence[float]] = RATES,
    *,
    seeds: int = 3,
    budget: float = BUDGET,
    workers: int | None = None,
) -> list[dict]:
    """Train each rule at each of its rates with each seed: the rows of `carry_out`.

    Args:
        seeds: of the parameters and of the order of the text: 0, …, seeds - 1.
        budget: FLOPs of each run.
        workers: processes at the same time; by default one per core.
    """
    tasks = [
        {"rule": rule, "rate": rate, "seed": seed, "budget": budget}
        for rule, several in rates.items()
        for rate in several
        for seed in range(seeds)
    ]
    found = farm(carry_out, tasks, workers=workers or cores())
    return [row for rows in found for row in rows]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The last losses of both rules, each at its best rate.

    Attributes:
        rates: of the lowest mean loss, by rule.
        losses: their means over the seeds, in nats a byte.
        mean, half: Muon's loss less AdamW's, over pairs with the same seed, and half the width of
            its 95 % interval.
    """

    rates: Mapping[str, float]
    losses: Mapping[str, float]
    mean: float
    half: float


def compared(rows: Iterable[Mapping]) -> Compared:
    """Compare both rules, each at its best rate, seed by seed."""
    last: dict[tuple[str, float], dict[int, float]] = {}
    for row in rows:  # the rows of a run are in order: its last one stays
        last.setdefault((row["rule"], row["rate"]), {})[row["seed"]] = row["loss"]
    means = {run: sum(losses.values()) / len(losses) for run, losses in last.items()}
    best = {rule: min((m, rate) for (r, rate), m in means.items() if r == rule) for rule in RULES}
    ours, theirs = (last[rule, best[rule][1]] for rule in ("Muon", "AdamW"))
    mean, half = interval(ours[seed] - theirs[seed] for seed in ours)
    rates = {rule: rate for rule, (_, rate) in best.items()}
    losses = {rule: loss for rule, (loss, _) in best.items()}
    return Compared(rates=rates, losses=losses, mean=mean, half=half)
