"""Communication volume of a recipe: its planned messages, and the ledger's beside them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import torch

from helpers.comm.ledger import Entry, Ledger
from helpers.comm.mesh import Layout
from helpers.parallel.mixture.transform import cut_experts
from helpers.parallel.pipeline.stages import Stages, pipeline
from helpers.parallel.tensor.transform import AXIS, cut_parameters
from helpers.parallel.transform import plain
from helpers.parallel.zero.stage1 import sharded_together
from helpers.plans.messages import Message
from helpers.plans.schedules import Schedule
from helpers.plans.step_messages import Stage, StepPlan, Tensor
from helpers.state.part import Part
from helpers.state.placing import Seat

STANDS_FOR = {"all_to_all": "reduce_scatter"}  # GroupTransport on gloo: see its `reduce_scatter`
SILENT = ("recv", "barrier")  # the sender's entry has the bytes


def step_plan(
    config,
    layout: Layout,
    *,
    schedule: Schedule | None = None,
    dtype=torch.float32,
    way: str = "ring",
    **options,
) -> StepPlan:
    """Describe a recipe's step from the model and the layout alone, without processes.

    Args:
        config: of the model.
        layout: of the axes pp, dp, cp, tp and ep. The experts are without a bias of the choice.
        schedule: of the pipeline; needed if the layout has an axis pp.
        dtype: of the numbers in messages.
        way: of attention over cp: "ring", "ulysses" or "gathered".
        options: of `StepPlan`: sequences, tokens, micro_batches, zero, sequence, again, ….

    Raises:
        ValueError: a layout with cp, and a mixer that is not attention.
    """
    if "cp" in layout.axes and {*config.mixers} != {"attention"}:
        raise ValueError(f"no plan of cp for the mixers {config.mixer}: only for attention")
    places = layout.size("pp") if "pp" in layout.axes else 1
    inner = cut_on_paper if {AXIS, "ep"} & {*layout.axes} else plain
    transform = partial(pipeline, schedule=schedule, inner=inner) if schedule else inner
    stages, rows, kept = [], [], set()
    for place in range(places):
        seat = Seat(layout, layout.rank(**({"pp": place} if places > 1 else {})))
        model, parts = transform(config, 0, seat, dtype)
        modules = list(model.values()) if isinstance(model, Stages) else [model]
        stages.append([stage_of(one) for one in modules])
        own = {}
        for unit, names, _ in sharded_together(model, parts, dict.fromkeys(parts, ())):
            row = {parts[name].name: tensor_of(seat, parts[name]) for name in names}
            own[f"{unit} {len(own)}"] = row
            ends = any(one.first for one in modules) and any(one.last for one in modules)
            if config.tied and ends and "embedding.weight" in row:
                kept.add(f"{unit} {len(own) - 1}")
        rows.append(own)
    size = torch.empty((), dtype=dtype).itemsize
    cut = layout.size(AXIS) if AXIS in layout.axes else 1
    heads = {"heads": config.heads / cut, "key_heads": max(config.key_heads / cut, 1)}
    return StepPlan(
        sizes=dict(zip(layout.axes, layout.shape, strict=True)),
        width=config.width,
        stages=stages,
        rows=rows,
        schedule=schedule,
        layers=1 if config.mlp == "none" else 2,
        recompute=config.recompute,
        kept=frozenset(kept),
        shared=frozenset(["embedding.weight"] if config.tied else []),
        attention={"way": way, "head_width": config.head_width, **heads},
        experts={name: getattr(config.experts, name) for name in ("count", "chosen")}
        if config.experts
        else {},
        **{"number_bytes": size, "gradient_bytes": size, "loss_bytes": max(4, size)} | options,
    )


def cut_on_paper(config, seed: int, seat: Seat, dtype: torch.dtype):
    """The parameters of tensor and expert parallelism in their local shapes, without groups."""
    placed = plain(config, seed, seat, dtype)
    parts = placed.parts
    if AXIS in seat.layout.axes:
        parts = cut_parameters(placed.model, seat, AXIS)
    if "ep" in seat.layout.axes:
        parts = cut_experts(placed.model, parts, seat, ("ep",))
    return replace(placed, parts=parts)


def stage_of(model) -> Stage:
    """A GPT, or a stage of it, in the plan's words."""
    routed = sum(block.routed for block in model.blocks.values())
    return Stage(blocks=len(model.blocks), routed=routed, first=model.first, last=model.last)


def tensor_of(seat: Seat, part: Part) -> Tensor:
    """A part in the plan's words."""
    axes = {axis for cut in part.cuts for axis in cut.axes}
    along = set(seat.layout.group_of(seat.rank, AXIS)) if AXIS in seat.layout.axes else set()
    partial = any(along >= {*group} for group in part.pending)
    return Tensor(numbers=part.numel, cut=AXIS in axes, partial=partial, expert="ep" in axes)


def apart(messages: Iterable[Message], ledger: Ledger, layout: Layout) -> dict:
    """Where a rank's planned messages and its ledger differ: message -> (planned, counted).

    The receiving half of a message is left out. The all-to-all by which gloo's reduce-scatter is
    made counts as a reduce-scatter, unless the plan has such an all-to-all.
    """
    planned, counted = Counter(), Counter()
    for one in messages:
        planned[one.axis, one.call, one.payload] += one.times
    for entry in ledger.entries:
        if entry.call not in SILENT:
            key = axis_of(entry, layout), entry.call, entry.payload
            if key not in planned:
                key = key[0], STANDS_FOR.get(entry.call, entry.call), entry.payload
            counted[key] += 1
    keys = planned.keys() | counted.keys()
    return {key: (planned[key], counted[key]) for key in keys if planned[key] != counted[key]}


def axis_of(entry: Entry, layout: Layout) -> str:
    """The axis of an entry, in a Message's words."""
    if entry.axes:
        return entry.axes.replace("_", " ")
    if entry.ranks < layout.world_size:
        return "ends"  # the only group that is not along axes of the mesh
    return layout.axes[0] if len(layout.axes) == 1 else "world"
