"""Dense and sparse at equal compute: one small model on bytes, its MLPs as one or as experts.

    rows = curves()                       trains all runs; `figures/experts.csv` has the rows
    compared(rows)                        how far each kind's losses are from the dense model's

A token meets as many numbers of matrices in each kind, but for the router's. The sparse kinds have
four times as many parameters in their MLPs. All kinds have one learning rate, the dense model's
best one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from helpers.models.counts import flops_per_token
from helpers.models.experts.loads import Loads, loads_of
from helpers.models.gpt import GPTConfig
from helpers.models.settings import ExpertSettings
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.runtime.devices import cores
from helpers.scaling.design import BATCH, LENGTH, model_of
from helpers.scaling.families import interval
from helpers.scaling.spend import held_out, spend
from helpers.training.farm import farm

DENSE = model_of(64, 2, 4)
EIGHT = ExpertSettings(count=8, chosen=2, hidden=DENSE.inner // 2)
KINDS = {
    "dense": None,
    "no balance": EIGHT,
    "loss": replace(EIGHT, loss_rate=0.01),
    "bias": replace(EIGHT, score="sigmoid", bias_rate=0.01),
    "loss, drops": replace(EIGHT, loss_rate=0.01, capacity=1.25),
}
RATE = 8e-3
BUDGET = 6e11  # FLOPs
STOPS = 6  # held-out losses of a run
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)  # of decoding


def config_of(kind: str) -> GPTConfig:
    """The model of this kind."""
    return replace(DENSE, experts=KINDS[kind])


def step_flops(kind: str) -> int:
    """FLOPs of a step: forward and backward of the batch, without drops."""
    return BATCH * LENGTH * flops_per_token(config_of(kind), LENGTH)


@torch.no_grad()
def routed(model: torch.nn.Module, batches, *, training: bool = False) -> Loads:
    """Run the model on held-out text, and record what its routers do: in training, with drops."""
    before = model.training
    with loads_of(model.train(training)) as loads:
        for batch in batches:
            model(batch.tokens)
    model.train(before)
    return loads


def carry_out(worker, kind: str, seed: int, budget: float) -> list[dict]:
    """Train one run.

    Returns:
        Rows with kind, seed, step, FLOPs so far, and nats a byte. The last row of a sparse run also
        has the share of each expert's tokens ("loads": a block after the other), the share that is
        dropped in training, and the experts that a block reads for each batch of `BATCHES`.
    """
    rule = OptimizerConfig(lr=RATE)
    strategy = Single(config_of(kind), seed, optimizer=rule, device=worker.device)
    of = {"budget": budget, "each": step_flops(kind), "rate": RATE, "stops": STOPS}
    more = {"loads": "", "dropped": "", "distinct": ""}
    rows = [{"kind": kind, "seed": seed} | row | more for row in spend(strategy, seed, **of)]
    if KINDS[kind] is not None:
        judged = held_out()
        loads = routed(strategy.model, judged)
        shares = loads.tokens / loads.tokens.sum(1, keepdim=True)
        dropped = routed(strategy.model, judged, training=True).dropped
        distinct = torch.tensor([loads.distinct(batch).mean() for batch in BATCHES])
        rows[-1] |= {"loads": text(shares.flatten()), "dropped": round(float(dropped.mean()), 5)}
        rows[-1]["distinct"] = text(distinct)
    return rows


def text(numbers: torch.Tensor) -> str:
    """Numbers as one cell of a table."""
    return " ".join(f"{number:.4f}" for number in numbers.tolist())


def curves(
    kinds: Sequence[str] = tuple(KINDS),
    *,
    seeds: int = 3,
    budget: float = BUDGET,
    workers: int | None = None,
) -> list[dict]:
    """Train each kind with each seed: the rows of `carry_out`.

    Args:
        seeds: of the parameters and of the order of the text: 0, …, seeds - 1.
        budget: FLOPs of each run.
        workers: processes at the same time; by default one per core.
    """
    tasks = [
        {"kind": kind, "seed": seed, "budget": budget} for kind in kinds for seed in range(seeds)
    ]
    found = farm(carry_out, tasks, workers=workers or cores())
    return [row for rows in found for row in rows]


def compared(rows: Iterable[Mapping]) -> dict[str, tuple[float, float, float]]:
    """Compare the last losses of each kind with the dense model's, seed by seed.

    Returns:
        kind -> the mean loss, in nats a byte; its difference from the dense model's; and half the
        width of the difference's 95 % interval.
    """
    last: dict[str, dict[int, float]] = {}
    for row in rows:  # the rows of a run are in order: its last one stays
        last.setdefault(row["kind"], {})[row["seed"]] = row["loss"]
    found = {}
    for kind, losses in last.items():
        less = interval(losses[seed] - last["dense"][seed] for seed in losses)
        found[kind] = (sum(losses.values()) / len(losses), *less)
    return found
