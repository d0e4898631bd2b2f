"""Plans that run: a plan's Recipe; a planned pipeline beside the equal split, in measured steps."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.cut_sequence.model import context_parallel
from helpers.parallel.owners.local import Local
from helpers.parallel.pipeline.engine import forward
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.planner.inter_operator import Cost, Inter, inter_operator
from helpers.planner.plan import Point
from helpers.plans.schedules import interleaved
from helpers.runtime.launch import launch
from helpers.simulate.plan import cut


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Measured seconds of the embedding, each block, and the head, in this order.

    Attributes:
        computing: forward and backward of a micro-batch.
        update: of the optimizer.
    """

    computing: tuple[float, ...]
    update: tuple[float, ...]

    def stage(self, start: int, stop: int, seconds: Sequence[float]) -> float:
        """The sum over the blocks start to stop - 1, and an end of the model that belongs there."""
        layers = len(seconds) - 2
        return sum(seconds[start + (start > 0) : stop + 1 + (stop == layers)])

    def predicted(self, cuts: Sequence[int], micro_batches: int) -> float:
        """Seconds of a step: the pipeline's T, and the longest update."""
        stops = [sum(cuts[: k + 1]) for k in range(len(cuts))]
        shares = list(zip([0, *stops], stops, strict=False))
        times = [self.stage(*share, self.computing) for share in shares]
        update = max(self.stage(*share, self.update) for share in shares)
        return sum(times) + (micro_batches - 1) * max(times) + update

    def plan(self, stages: int, micro_batches: int) -> Inter:
        """The inter-operator plan for one rank a stage."""

        def stage(start: int, stop: int, mesh: int) -> Cost:
            share = self.stage(start, stop, self.update) / micro_batches
            return Cost(seconds=self.stage(start, stop, self.computing) + share)

        layers = len(self.computing) - 2
        return inter_operator(
            layers, stage, meshes={1: 1}, devices=stages, micro_batches=micro_batches
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One cut of the layers: predicted, and measured steps in seconds."""

    cuts: tuple[int, ...]
    predicted: float
    steps: tuple[float, ...]

    @property
    def measured(self) -> float:
        return statistics.median(self.steps)


OWNERS = {0: Local, 1: Zero1, 2: Zero2, 3: Zero3}
SEQUENCE = partial(context_parallel, inner=sequence_parallel)  # a Recipe adds cp to `plain` alone


def recipe(point: Point) -> Recipe:
    """A plan's Recipe: `recipe(point)(point.config, micro_batches=point.plan.micro_batches)`."""
    plan, schedule, cuts = point.plan, point.plan.schedule, None
    if plan.chunks > 1:
        schedule = partial(interleaved, chunks=plan.chunks)
    elif plan.ranks("pp") > 1 and schedule is None:
        cuts = tuple(stage.blocks for stage in cut(point.config, plan))
    return Recipe(
        layout=plan.layout,
        schedule=schedule,
        cuts=cuts,
        transform=SEQUENCE if plan.sequence and plan.ranks("tp") > 1 else plain,
        owner=OWNERS[plan.zero if plan.ranks("dp") * plan.ranks("cp") > 1 else 0],
    )


def run_cuts(
    config: GPTConfig,
    *,
    ranks: int = 2,
    micro_batches: int = 4,
    sequences: int = 2,
    tokens: int = 64,
    repeats: int = 9,
    cuts: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Run]:
    """Plan from measured layers; run the plan and the equal split, in turn.

    Args:
        ranks: a stage each, with one thread.
        sequences, tokens: of a micro-batch.
        repeats: measured steps of each cut.
        cuts: more cuts to run, by name.

    Returns:
        "equal", "planned" and those of `cuts` -> Run.

    Raises:
        ValueError: the ranks do not divide the layers.
    """
    if config.layers % ranks:
        raise ValueError(f"{config.layers} layers have no equal split over {ranks} ranks")
    size = {"sequences": sequences, "tokens": tokens, "repeats": repeats}
    found = launch(layer_times, workers=ranks, timeout=600, config=config, **size)
    computing, update = np.mean(list(found), axis=0).tolist()
    layers = Layers(computing=tuple(computing), update=tuple(update))
    every = {"equal": (config.layers // ranks,) * ranks}
    every |= {"planned": layers.plan(ranks, micro_batches).cuts}
    every |= {name: tuple(one) for name, one in (cuts or {}).items()}
    more = {"cuts": every, "m": micro_batches, "timeout": 600}  # a busy machine is slow
    runs = launch(step_times, workers=ranks, config=config, **more, **size)
    slowest = {name: np.max([run[name] for run in runs], axis=0).tolist() for name in every}
    return {
        name: Run(
            cuts=one,
            predicted=layers.predicted(one, micro_batches),
            steps=tuple(slowest[name]),
        )
        for name, one in every.items()
    }


def layer_times(worker, config: GPTConfig, sequences: int, tokens: int, repeats: int):
    """(seconds of computing, of updates) of the embedding, each block and the head, on this rank.

    All ranks measure at the same time, as they compute at the same time in a pipeline. The fastest
    of the repeats counts.
    """
    torch.set_num_threads(1)
    batch = random_batch(0, sequences, tokens, config.vocab)
    none = {"first": False, "last": False}
    ends = none | {"blocks": (), "first": True}, none | {"blocks": (), "last": True}
    stages = [ends[0], *(none | {"blocks": (n,)} for n in range(config.layers)), ends[1]]
    models = [config.build(**stage) for stage in stages]
    generator = torch.Generator().manual_seed(0)
    for model in models:
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    optimizers = [torch.optim.AdamW(one.parameters(), fused=True) for one in models]
    times = [([], []) for _ in models]
    for _ in range(repeats + 1):
        dist.barrier()
        for model, optimizer, (computing, update) in zip(models, optimizers, times, strict=True):
            x = torch.randn(sequences, tokens, config.width, generator=generator)
            began = time.perf_counter()
            y = forward(model, batch, None if model.first else x.requires_grad_())
            loss = model.criterion(y, batch.targets)[0] if model.last else y.sum()
            loss.backward()
            middle = time.perf_counter()
            optimizer.step()
            computing.append(middle - began)
            update.append(time.perf_counter() - middle)
    return tuple([min(one[k][1:]) for one in times] for k in (0, 1))


def step_times(
    worker, config: GPTConfig, cuts: Mapping[str, Sequence[int]], m: int, sequences: int,
    tokens: int, repeats: int,
):  # fmt: skip
    """Measured steps of a pipeline for each cut, in turn: {name: seconds}."""
    torch.set_num_threads(1)
    batch = random_batch(0, sequences * m, tokens, config.vocab)
    trainers = {
        name: Recipe(layout=Layout(pp=worker.world_size), cuts=one)(config, micro_batches=m)
        for name, one in cuts.items()
    }
    times = {name: [] for name in trainers}
    for _ in range(repeats + 1):
        for name, trainer in trainers.items():
            dist.barrier()
            began = time.perf_counter()
            trainer.step(batch)
            times[name].append(time.perf_counter() - began)
    for trainer in trainers.values():
        trainer.close()
    return {name: found[1:] for name, found in times.items()}
