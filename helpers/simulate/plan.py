"""A plan: how a step of training is cut over GPUs, and what each place of the pipeline has."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from helpers.comm.layout import Layout
from helpers.models.shape import GPTShape
from helpers.plans.schedules import Schedule, ScheduleError
from helpers.plans.schedules import check as check_schedule
from helpers.plans.step_messages import Stage, StepPlan, Tensor
from helpers.simulate.kernels import NUMBER, numbers
from helpers.simulate.tensor_parallel import check_sizes
from helpers.simulate.topology import Topology

AXES = ("pp", "dp", "cp", "tp")
SHARED = frozenset({"embedding"})  # on the first and the last stage, if it is tied


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a step of training is cut over GPUs. The model's config says what is recomputed.

    Attributes:
        layout: of the axes pp, dp, cp and tp, any of them.
        sequences, tokens: of the global batch; of a sequence.
        micro: b.
        chunks: v, of interleaved 1F1B.
        schedule: another schedule than 1F1B: a function of (p, m), as a Recipe's.
        cuts: blocks of each stage, as a Recipe's; None: as equal as they can be.
        zero: the stage of ZeRO over dp.
        sequence: sequence parallelism over tp.
        overlap: computation hides messages over dp: the last backward, of ZeRO-2 all backwards, of
            ZeRO-3 all of the step.
        hidden_tp: the gradients of the weights hide the backward's messages over tp, as in
            Megatron-LM ("asynchronous all-reduce").
        gradient_bytes: of a gradient in the messages over dp.
    """

    layout: Layout
    sequences: int
    tokens: int
    micro: int = 1
    chunks: int = 1
    schedule: Callable[[int, int], Schedule] | None = None
    cuts: tuple[int, ...] | None = None
    zero: int = 0
    sequence: bool = False
    overlap: bool = False
    hidden_tp: bool = True
    gradient_bytes: float = NUMBER

    def ranks(self, axis: str) -> int:
        return self.layout.size(axis) if axis in self.layout.axes else 1

    @property
    def micro_batches(self) -> int:
        """m, of each replica."""
        return self.sequences // (self.ranks("dp") * self.micro)

    @cached_property
    def made(self) -> Schedule | None:
        """The schedule, if it is not 1F1B. A ScheduleError says that it cannot run, or not here."""
        p, m = self.ranks("pp"), self.micro_batches
        made = self.schedule and check_schedule(self.schedule(p, m))
        if made and (made.ranks, made.micro_batches) != (p, m):
            raise ScheduleError(f"{made} is not for {p} ranks and {m} micro-batches")
        return made


def check(config: GPTShape, plan: Plan, cluster: Topology):
    """Raise a ValueError if the plan does not fit the model or the cluster."""
    layout, p = plan.layout, plan.ranks("pp")
    if unknown := set(layout.axes) - set(AXES):
        raise ValueError(f"{layout.title()}: the axes are {', '.join(AXES)}, not {min(unknown)!r}")
    if layout.world_size != cluster.gpus:
        raise ValueError(f"{layout.title()} is not for {cluster.gpus} GPUs")
    if min(plan.sequences, plan.tokens, plan.micro, plan.chunks) < 1:
        raise ValueError("sequences, tokens, micro and chunks must be positive")
    part, rest = divmod(plan.tokens, plan.ranks("cp"))
    if rest:
        raise ValueError(f"{plan.tokens} tokens do not divide over {plan.ranks('cp')} parts")
    check_sizes(config, plan.ranks("tp"), part if plan.sequence else plan.ranks("tp"))
    if plan.sequences % (plan.ranks("dp") * plan.micro):
        raise ValueError(
            f"{plan.sequences} sequences are no micro-batches of {plan.micro} on "
            f"{plan.ranks('dp')} replicas"
        )
    if config.layers < p * plan.chunks:
        raise ValueError(f"{config.layers} layers are too few for {p} x {plan.chunks} stages")
    if plan.cuts and (len(plan.cuts) != p or min(plan.cuts) < 1 or sum(plan.cuts) != config.layers):
        raise ValueError(f"cuts {plan.cuts} do not give {p} stages a block each of {config.layers}")
    if plan.chunks > 1 and (p == 1 or plan.micro_batches % p):
        raise ValueError(f"interleaving needs 2 stages, and m a multiple of {p}")


def cut(config: GPTShape, plan: Plan) -> list[Stage]:
    """The stages on each place of the pipeline; the v chunks of a place count together.

    Without `cuts` the first places have one block more than the others, if they do not divide. A
    chunk has whole blocks: all chunks of a place count as many as its largest.
    """
    p, layers = plan.ranks("pp"), config.layers
    cuts = plan.cuts or [layers // p + (place < layers % p) for place in range(p)]
    chunks = [len(plan.made.stages_of(k)) if plan.made else plan.chunks for k in range(p)]
    return [
        Stage(blocks=-(-blocks // v) * v, first=place == 0, last=place == p - 1)
        for place, (blocks, v) in enumerate(zip(cuts, chunks, strict=True))
    ]


def rows_of(config: GPTShape, plan: Plan, on: Stage) -> dict[str, dict[str, Tensor]]:
    """Parameters on a GPU of this stage: a row for each block, as ZeRO gathers them, and the ends.

    Norms and biases count as cut over tp: they are too small to matter.
    """
    return rows_over(config, plan.ranks("tp"), on)


@lru_cache  # of the thousands of plans that a planner times, many cut the rows alike
def rows_over(config: GPTShape, t: int, on: Stage) -> dict[str, dict[str, Tensor]]:
    each = numbers(config)
    rows = {f"block {k}": {f"block {k}": each["block"]} for k in range(on.blocks)}
    if on.first or (on.last and config.tied):
        rows["embedding"] = {"embedding": each["head"]}  # the table
        if on.first and config.positions == "learned":
            rows["embedding"]["positions"] = each["embedding"] - each["head"]
    if on.last:
        rows["head"] = {"norm": each["norm"]} | ({} if config.tied else {"head": each["head"]})
    return {
        row: {name: Tensor(numbers=-(-count // t), cut=True) for name, count in tensors.items()}
        for row, tensors in rows.items()
    }


def parameters(rows: dict[str, dict[str, Tensor]]) -> int:
    return sum(tensor.numbers for row in rows.values() for tensor in row.values())


def wire(config: GPTShape, plan: Plan, places: list[Stage], rows: list) -> StepPlan:
    """What the step's messages depend on, as `plans.step_messages` reads it."""
    t = plan.ranks("tp")
    heads = {"heads": config.heads // t, "key_heads": max(1, config.key_heads // t)}
    return StepPlan(
        sizes={axis: plan.ranks(axis) for axis in AXES},
        width=config.width,
        sequences=plan.micro,
        tokens=plan.tokens,
        stages=[[on] for on in places],
        rows=rows,
        micro_batches=plan.micro_batches,
        recompute=config.recompute,
        zero=plan.zero,
        gradient_bytes=plan.gradient_bytes,
        sequence=plan.sequence,
        kept=SHARED if config.tied and plan.ranks("pp") == 1 else frozenset(),
        shared=SHARED,
        attention={"way": "ring", "head_width": config.head_width, **heads},
    )
