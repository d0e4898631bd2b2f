"""PyTorch's own pipelines, torch.distributed.pipelining, as a Strategy: the oracle for ours."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from helpers.comm.mesh import Mesh
from helpers.data.batch import Batch
from helpers.parallel.pipeline.engine import Pipeline
from helpers.parallel.pipeline.stages import AXIS, Stages, pipeline
from helpers.parallel.trainer import Recipe, Trainer
from helpers.parallel.world import GlobalSum
from helpers.plans.schedules import Schedule, gpipe, one_f_one_b
from helpers.plans.schedules.plain import interleaved
from helpers.plans.schedules.zero_bubble import zero_bubble_v


@dataclass(frozen=True)
class Kind:
    """A schedule of PyTorch, and ours with the same stages on the same ranks."""

    theirs: type
    ours: Callable[[int, int], Schedule]


KINDS = {
    "GPipe": Kind(ScheduleGPipe, gpipe),
    "1F1B": Kind(Schedule1F1B, one_f_one_b),
    "interleaved": Kind(ScheduleInterleaved1F1B, partial(interleaved, chunks=2)),
    "ZB-V": Kind(ScheduleZBVZeroBubble, zero_bubble_v),
}


class TorchPipelining(Trainer):
    """Our stages of the plain GPT, run by a schedule of torch.distributed.pipelining.

    Only the engine differs from ours: stages, sums of tied gradients, clipping and update are the
    same. PyTorch's stages need micro-batches of one size, and no dropout here: its masks would need
    each micro-batch's place in the global batch.

    Args:
        config, seed, mesh, dtype, device, optimizer: as for Trainer; the mesh has one axis, "pp".
        schedule: "GPipe", "1F1B", "interleaved" or "ZB-V"; the last two have two stages a rank.
        micro_batches: m; it divides each batch.

    Raises:
        ValueError: the mesh has other axes; the config has dropout, or balances experts; and from
            `step`, a batch that m does not divide.
    """

    def __init__(
        self,
        config,
        seed: int,
        mesh: Mesh,
        *,
        schedule: str = "1F1B",
        micro_batches: int = 1,
        **options,
    ):
        if mesh.layout.axes != (AXIS,):
            raise ValueError(
                f"TorchPipelining needs a mesh with the axis pp alone, not {mesh.layout!r}"
            )
        if config.dropout:
            raise ValueError("TorchPipelining has no dropout: use a config with dropout=0")
        if config.experts and config.experts.regulated:
            raise ValueError(
                "TorchPipelining has no losses and loads of experts beside the loss: use "
                "loss_rate=0, z_rate=0 and bias_rate=0"
            )
        kind = KINDS[schedule]
        ours = kind.ours(mesh.size(AXIS), micro_batches)
        recipe = Recipe(
            transform=partial(pipeline, schedule=ours), engine=partial(TheirEngine, kind.theirs)
        )
        super().__init__(recipe, config, seed, mesh, micro_batches=micro_batches, **options)


class TheirEngine(Pipeline):
    """Run a step by PyTorch's schedule; everything else as ours.

    Args:
        kind: a schedule of torch.distributed.pipelining.
    """

    def __init__(self, kind: type, model: Stages, owner):
        super().__init__(model, owner)
        place = {"device": self.sample.device, "group": model.mesh.group(AXIS)}
        stages = [
            PipelineStage(module, number, self.schedule.stages, **place)
            for number, module in self.stages.items()
        ]
        several = len(self.stages) > 1
        self.theirs = kind(
            stages if several else stages[0],
            n_microbatches=self.schedule.micro_batches,
            loss_fn=self.mean,
            scale_grads=False,  # the loss is divided by the global number of targets already
        )

    def mean(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """A micro-batch's share of the global mean."""
        total, _ = self.stages[self.last].criterion(logits, targets)
        return total / self.tokens.wait().clamp(min=1)

    def step(self, micro_batches: list[Batch], tokens: GlobalSum, loss: GlobalSum):
        self.tokens, shares = tokens, []  # each micro-batch's share of the mean
        sizes = {len(batch) for batch in micro_batches}
        if len(sizes) > 1 or 0 in sizes:
            raise ValueError(
                f"PyTorch's pipelines need micro-batches of one size, not {sorted(sizes)}: choose "
                f"a batch that {len(micro_batches)} micro-batches divide"
            )
        given = (torch.cat([b.tokens for b in micro_batches]),) if 0 in self.stages else ()
        target = None
        if self.last in self.stages:
            target = torch.cat([b.targets for b in micro_batches])
        self.theirs.step(*given, target=target, losses=shares)
        for share in shares:
            loss.add(share.detach() * tokens.wait())
        loss.send()
