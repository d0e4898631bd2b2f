"""Measure the training steps of several strategies in the same processes, in turn."""

from collections.abc import Iterable, Mapping
from functools import partial

import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.measure.memory import memory_of
from helpers.models.gpt import GPTConfig
from tests.bench.compare import in_turn
from tests.bench.data_parallel import timed

WARM_UP = 3  # steps that are not timed


def blocks(
    worker, contenders: Mapping, preset: str, axis: str, tokens: int, rounds: int
) -> dict[str, dict]:
    """Measure every contender on this rank: seconds per step in each round, bytes of one step.

    Args:
        contenders: functions of (config, seed, mesh) that make a strategy, by name.
        axis: of all ranks. Along "dp" each rank has its own sequence.
    """
    torch.set_num_threads(1)
    config = GPTConfig.preset(preset, context=tokens)
    batch = random_batch(worker.rank if axis == "dp" else 0, 1, tokens, config.vocab)
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
    times = in_turn({name: timed(step) for name, step in steps.items()}, rounds)
    return {"times": times, "costs": costs}


def slowest(runs, names: Iterable[str]) -> dict[str, list[float]]:
    """The time of the slowest rank, by contender and round."""
    return {
        name: [max(ranks) for ranks in zip(*(run["times"][name] for run in runs), strict=True)]
        for name in names
    }
