"""Seconds of a training step of any plan: pipeline, data, context and tensor parallelism.

    stage       max(GPU, host) of its blocks for one micro-batch, and the messages inside the layers
    pipeline    the schedule's own makespan for these stages, which are not equal: the first has the
                embedding, the last has the head
    step        pipeline + gradients that no backward hides + the optimizer

p  pipeline stages      d  replicas       c  parts of a sequence    t  tensor-parallel GPUs
m  micro-batches        v  chunks: stages on each GPU               b  sequences of a micro-batch

The step's messages are those of `plans.step_messages`. Their seconds come from `collective_time`.

Sources: Narayanan et al. 2021, arXiv:2104.04473, sections 2 and 3 (stages, bubble, messages);
Korthikanti et al. 2022, arXiv:2205.05198, section 4 (what runs again).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from helpers.models.shape import GPTShape
from helpers.plans.schedules import Action, bubble, timeline
from helpers.plans.step_messages import (
    Stage,
    context_messages,
    data_messages,
    partial_sums,
    tensor_messages,
)
from helpers.simulate.kernels import Part, Rates, block, embedding, head
from helpers.simulate.links import Links
from helpers.simulate.memory import memory
from helpers.simulate.plan import Plan, check, cut, parameters, rows_of, wire
from helpers.simulate.topology import Topology

SHARPNESS = 8  # how suddenly the slower of host and GPU decides; infinite is a plain maximum


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A step of one GPU on the busiest stage.

    Attributes:
        parts: cause -> seconds; their sum is `seconds`. "computing" has the GPU's kernels; "host"
            the time that the GPU waits for launches.
    """

    config: GPTShape
    plan: Plan
    parts: dict[str, float]

    @cached_property
    def memory(self) -> dict[str, float]:
        """Bytes by kind at the peak, on the GPU that needs the most."""
        return memory(self.config, self.plan)

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def peak_bytes(self) -> float:
        return sum(self.memory.values())


def step_time(
    config: GPTShape, plan: Plan, cluster: Topology, rates: Rates | None = None
) -> StepTime:
    """Predict a step of a GPT with attention.

    Args:
        plan: its layout places the groups on the cluster: the last axis has neighbours.
        cluster: as many GPUs as the layout has ranks.
        rates: of GPUs, hosts and links; None: the defaults.

    Raises:
        ValueError: the plan does not fit the model or the cluster.
    """
    check(config, plan, cluster)
    rates = rates or Rates()
    p, t, m, parts = (plan.ranks("pp"), plan.ranks("tp"), plan.micro_batches, plan.ranks("cp"))
    tokens = plan.micro * plan.tokens // parts
    shared = {"ranks": t, "parts": parts, "sequence": plan.sequence}
    one = block(config, rates, plan.micro, plan.tokens, **shared)
    ends = embedding(config, rates, tokens), head(config, rates, tokens, t)
    links = Links(plan, cluster, rates)
    cores = 3 if config.recompute == "none" else 4  # a backward takes two forwards of it
    backwards = 1 / 3 if config.recompute == "full" else 1 / 2  # of the messages over tp

    places = cut(config, plan)
    rows = {on: rows_of(config, plan, on) for on in set(places)}
    wires = wire(config, plan, places, [rows[on] for on in places])
    stages = {}
    for on in rows:
        inside = links.seconds(tensor_messages(wires, [on])) / m
        inside -= min(inside * backwards, on.blocks * one.weights) * plan.hidden_tp
        around = links.seconds(context_messages(wires, [on])) / m  # hides behind the cores
        inside += max(0.0, around - on.blocks * one.core * cores)
        stages[on] = costs(config, one, ends, on, inside)

    order, sends = [stages[on] for on in places], (links.send(wires.activations), 0.0)
    span, still = (makespan(order, plan, send) for send in sends)
    where = max(range(p), key=lambda place: order[place].whole)
    at, own, shards = order[where], rows[places[where]], plan.ranks("dp") * parts
    # ZeRO-3 gathers for each forward and backward; stage 2 sends gradients after each backward
    covers = {2: m * at.backward, 3: m * at.whole}.get(plan.zero, at.backward)
    hidden = covers if plan.overlap else 0.0
    gradients = max(0.0, links.seconds(data_messages(wires, own)) - hidden)
    tied = links.seconds(partial_sums(wires, where))
    updated = parameters(own) / (shards if plan.zero else 1)
    seconds = {
        "computing": m * at.gpu,
        "host": m * (at.whole - at.gpu - at.messages),
        "tp": m * at.messages,
        "pp": span - still,
        "bubble": still - m * at.whole,
        "dp": gradients + tied,
        "optimizer": rates.moving(updated * rates.update) + rates.step,
    }
    return StepTime(config=config, plan=plan, parts=seconds)


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """Seconds of a stage for one micro-batch.

    Attributes:
        forward, backward: with messages inside the layers.
        gpu: of the kernels.
        messages: inside the layers.
    """

    forward: float
    backward: float
    gpu: float
    messages: float

    @property
    def whole(self) -> float:
        return self.forward + self.backward


def costs(config: GPTShape, one: Part, ends: tuple[Part, Part], on: Stage, sent: float):
    """Add up a stage: its blocks, with what runs again, and perhaps embedding or head.

    Args:
        one: a block.
        ends: embedding and head.
        sent: seconds of messages inside the layers for a micro-batch.
    """
    again = {"none": 0.0, "selective": one.core, "full": one.forward}[config.recompute]
    launches = one.launching * (1 + again / one.forward) + one.launching_back
    forward, backward = on.blocks * one.forward, on.blocks * (one.backward + again)
    whole = slower(forward + backward + sent, on.blocks * launches)
    for part, here in zip(ends, (on.first, on.last), strict=True):
        if here:  # its host does not run ahead while that of the blocks lags behind
            forward, backward = forward + part.forward, backward + part.backward
            whole += slower(part.forward + part.backward, part.launching)
    gpu = forward + backward
    return StageTime(
        forward=whole * forward / gpu, backward=whole * backward / gpu, gpu=gpu, messages=sent
    )


def slower(gpu: float, host: float) -> float:
    """The maximum of both, rounded where they are alike: then each waits for the other at times."""
    return (gpu**SHARPNESS + host**SHARPNESS) ** (1 / SHARPNESS)


def makespan(stages: Sequence[StageTime], plan: Plan, send: float) -> float:
    """Seconds of a pipeline whose messages take `send` seconds; compute does not wait for sends.

    The plan's own schedule has its timeline. 1F1B is the same, by `one_f_one_b`. With v chunks the
    pipeline fills and drains v times as fast; that is exact where stages are equal, and no send
    takes longer than a chunk's forward. Slower sends make it too long, by up to 28 %.
    """
    p, m, v = plan.ranks("pp"), plan.micro_batches, plan.chunks
    if schedule := plan.made:
        own = [len(schedule.stages_of(rank)) for rank in schedule.placement]
        of = [stages[rank] for rank in schedule.placement]
        each = (
            [getattr(stage, name) / n for stage, n in zip(of, own, strict=True)]
            for name in ("forward", "backward")
        )
        return bubble(timeline(schedule, StageCosts(*each, send))).makespan
    forward, backward = zip(*((stage.forward, stage.backward) for stage in stages), strict=True)
    if v == 1:
        return one_f_one_b(forward, backward, m, send)
    whole = [stage.whole for stage in stages]
    around = (sum(whole) + 2 * v * send * (p - 1)) / (2 * p - 1)  # down all ranks and back
    period = max(max(whole), around, max(sum(forward), sum(backward)) / p + v * send)
    return (sum(whole) - max(whole)) / v + 2 * send * (p * v - 1) + max(whole) + (m - 1) * period


@lru_cache(8192)  # plans that differ in ZeRO, and clusters that differ in links, ask for the same
def one_f_one_b(
    forward: tuple[float, ...], backward: tuple[float, ...], micro_batches: int, send: float = 0.0
) -> float:
    """The makespan of 1F1B with stages of these seconds: that of its `timeline`, without Actions.

    Beyond 4 p micro-batches, p more count as long as the p before. Where two stages are nearly the
    slowest, or messages are slow, that is up to 3 % off.
    """
    p, m = len(forward), micro_batches
    if m > 4 * p:
        long, short = (one_f_one_b(forward, backward, k * p, send) for k in (4, 3))
        return long + (m - 4 * p) / p * (long - short)
    forwards, backwards = ([[0.0] * m for _ in range(p)] for _ in range(2))  # ends, by stage
    for k in range(m + p - 1):
        for s in range(p if k < m else 0):
            start = forwards[s][k - 1] if k else 0.0
            if s:
                start = max(start, forwards[s - 1][k] + send)
            if k >= p - s:  # one forward, one backward
                start = max(start, backwards[s][k - p + s])
            forwards[s][k] = start + forward[s]
        for s in range(p):
            at = k - (p - 1 - s)
            if 0 <= at < m:
                start = max(forwards[s][min(k, m - 1)], backwards[s][at - 1] if at else 0.0)
                if s < p - 1:
                    start = max(start, backwards[s + 1][at] + send)
                backwards[s][at] = start + backward[s]
    return backwards[0][-1]


@dataclass(frozen=True)
class StageCosts:
    """Seconds of each stage's forward and backward, as `timeline` asks for them."""

    forward: Sequence[float]
    backward: Sequence[float]
    message: float = 0.0

    def of(self, action: Action) -> float:
        whole = {"F": self.forward, "B": self.backward}.get(action.kind)
        return whole[action.stage] if whole else self.backward[action.stage] / 2
