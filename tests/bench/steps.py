"""Measure the training steps of several strategies in the same processes, in turn."""

from collections.abc import Iterable, Mapping
from functools import partial

import torch
import torch.distributed as dist

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig
from helpers.runtime.launch import launch
from tests.bench.compare import beside, in_turn, median, timed

RANKS = 2
WARM_UP = 3  # steps that are not timed: they fill allocators and make buckets
STEPS = 2  # per block
NOTES = (
    f"All contenders run in the same processes, in turn, in blocks of {STEPS} steps. A ratio is "
    "the median over pairs, with a 95 % bootstrap interval. "
)


def measured(contenders: Mapping, rounds: int, **work) -> tuple[dict, dict]:
    """Return, by contender, the seconds of each round, and the bytes of one step.

    The slowest rank's seconds count, and the largest peak; other bytes are rank 0's.
    """
    options = {"contenders": contenders, "rounds": rounds, **work}
    runs = launch(blocks, RANKS, device="cpu", timeout=None, **options)
    costs = {name: dict(runs[0]["costs"][name]) for name in contenders}
    for name, cost in costs.items():
        cost["peak"] = max(run["costs"][name]["peak"] for run in runs)
    return slowest([run["times"] for run in runs], contenders), costs


def blocks(
    worker, contenders: Mapping, preset: str, axis: str, tokens: int, rounds: int,
    sequences: int = 1, **sizes
) -> dict[str, dict]:  # fmt: skip
    """Measure every contender on this rank: seconds per step in each round, bytes of one step.

    Args:
        contenders: functions of (config, seed, mesh) that make a strategy, by name.
        axis: of all ranks. Along "dp" each rank has its own sequences.
        sizes: of the model, other than the preset's.
    """
    torch.set_num_threads(1)
    config = GPTConfig.preset(preset, context=tokens, **sizes)
    seed = worker.rank if axis == "dp" else 0
    batch = random_batch(seed, sequences, tokens, config.vocab)
    mesh = make_mesh(Layout(**{axis: worker.world_size}))
    steps, costs = {}, {}
    for name, strategy in contenders.items():
        trained = strategy(config, 0, mesh)
        step = steps[name] = partial(trained.step, batch)
        for _ in range(WARM_UP):
            step()
        with ledger() as log:
            step()
        memory = memory_of(step, trained.model, trained.optimizer)
        costs[name] = {"wire": log.wire, "kernel": log.kernel, "peak": memory.peak}
        costs[name]["model_states"] = memory.model_states
    turns = {name: timed(step, STEPS, before=dist.barrier) for name, step in steps.items()}
    return {"times": in_turn(turns, rounds), "costs": costs}


def slowest(by_rank: Iterable[Mapping], names: Iterable[str]) -> dict[str, list[float]]:
    """The time of the slowest rank, by contender and round."""
    ranks = list(by_rank)
    return {
        name: [max(times) for times in zip(*(rank[name] for rank in ranks), strict=True)]
        for name in names
    }


def row(name: str, peer: str, goal: float | None, times: Mapping, costs: Mapping) -> dict:
    """The row of a contender beside its peer, or of the peer itself."""
    return {
        "contender": name,
        "median": median(times[name]),
        **beside(times[name], times[peer]),
        "goal": goal or "",
        "rounds": len(times[name]),
        **costs,
    }
