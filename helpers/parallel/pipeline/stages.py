"""The pipeline's transform: this rank's stages of the plain GPT, and where each parameter is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import nn

from helpers.comm.mesh import Mesh
from helpers.parallel.pipeline.split import layer_costs, split
from helpers.parallel.transform import Placed, plain
from helpers.parallel.units import Apart
from helpers.plans.schedules import Schedule, check
from helpers.state.placing import only, pending

AXIS = "pp"


def pipeline(
    config,
    seed: int,
    mesh: Mesh,
    dtype: torch.dtype,
    *,
    schedule: Schedule,
    inner: Callable = plain,
    cuts: Sequence[int] | None = None,
) -> Placed:
    """Build this rank's stages of a model, cut by cost over the axis "pp".

    Recipe(transform=partial(pipeline, schedule=one_f_one_b(2, 4)), engine=Pipeline)

    Args:
        config, seed, mesh, dtype: as for any transform of a Recipe. The mesh has an axis "pp". A
            `Seat` will do, to see a rank's stages without processes.
        schedule: places the stages on the ranks. It is checked here.
        inner: the transform of each stage, such as `tensor_parallel`.
        cuts: how many blocks each stage has; None: cut by their FLOPs.

    Returns:
        This rank's stages, and the parts of their parameters by name: "2.blocks.5.mlp.up.weight"
        for stage 2. A tied embedding is on the first and on the last stage, and its gradient is a
        sum over both. A rank with both stages has it once. The last stage alone has a loss.

    Raises:
        ValueError: the schedule is for another number of ranks; there are fewer layers than stages;
            `cuts` does not give each stage a layer, or each layer a stage.
        ScheduleError: the schedule cannot run.
    """
    check(schedule)
    if (ranks := mesh.layout.size(AXIS)) != schedule.ranks:
        raise ValueError(
            f"{schedule.name} is a schedule for {schedule.ranks} ranks, but the axis pp of "
            f"{mesh.layout.title()} has {ranks}: make the schedule for {ranks} ranks"
        )
    first, blocks, last = layer_costs(config)
    shares = split(blocks, schedule.stages, first=first, last=last)
    if cuts is not None:
        stops = [*accumulate(cuts)]
        if len(cuts) != len(shares) or min(cuts) < 1 or stops[-1] != config.layers:
            raise ValueError(
                f"{config.layers} layers in {schedule.stages} stages, each with a layer or more: "
                f"{tuple(cuts)} is not such a cut"
            )
        shares = [range(stop - count, stop) for stop, count in zip(stops, cuts, strict=True)]
    model, parts, placed = Stages(schedule, mesh), {}, []
    for stage in schedule.stages_of(mesh.layout.coordinates(mesh.rank)[AXIS]):
        ends = {"first": stage == 0, "last": stage == schedule.stages - 1}
        one = inner(Stage(config, shares[stage], ends), seed, mesh, dtype)
        placed.append(one)
        model.add_module(str(stage), one.model)
        for name, part in one.parts.items():
            plain_name = one.model.plain_name(name)
            homes = {schedule.placement[stage]}
            if plain_name == "embedding.weight" and config.tied:
                homes = {schedule.placement[0], schedule.placement[-1]}
            here = only(mesh, replace(part, name=plain_name), AXIS, homes)
            parts[f"{stage}.{name}"] = pending(mesh, here, AXIS)
    model.tie()

    def take(batch):
        return [one.take(batch) for one in placed][-1]  # each stage sees the batch

    return replace(
        placed[-1],
        model=model,
        parts={name: parts[name] for name, _ in model.named_parameters()},
        loss_sums=(*placed[-1].loss_sums, AXIS),
        take=take,
    )


@dataclass(frozen=True)
class Stage:
    """A configuration that builds one stage, for transforms that call `config.build`."""

    config: object
    blocks: range
    ends: dict[str, bool]

    def build(self, dtype: torch.dtype, device, **options) -> nn.Module:
        return self.config.build(dtype, device, blocks=self.blocks, **self.ends, **options)


class Stages(Apart):
    """This rank's stages, by their numbers in the pipeline: `model["2"]` is stage 2.

    Attributes:
        schedule, mesh: as for `pipeline`.
    """

    def __init__(self, schedule: Schedule, mesh: Mesh):
        super().__init__()
        self.schedule, self.mesh = schedule, mesh

    def tie(self):
        """Let the last stage's head share the first stage's embedding, if both are here."""
        ends = [self[str(end)] for end in (0, self.schedule.stages - 1) if str(end) in self]
        if len(ends) == 2 and ends[0].config.tied:
            ends[1].head.weight = ends[0].embedding.weight

    def _apply(self, fn, recurse=True):  # moving and casting may replace the parameters
        super()._apply(fn, recurse)
        self.tie()
        return self
