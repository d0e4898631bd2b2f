"""The step of training on three axes: a pipeline of tensor-parallel stages, and replicas of it.

A replica sends m micro-batches through p stages. Each stage is cut over t GPUs, and there are d
replicas. The model is a simple sum; nothing overlaps:

    seconds = (m + (p - 1) / v) · (computing + tp messages + pp messages)  +  gradients over dp

in which the bracket is one micro-batch on one stage, forward and backward. The term with p - 1 is
the bubble. All stages take equally long: embedding and head count as parts of blocks.

A message between stages takes as long as the slowest: between nodes, if the pipeline leaves a
node. The model leaves out the optimizer, the global norm, the sum of a tied embedding's gradients,
and the loss of speed when matrices get narrow. Beside Megatron-LM's published strong scaling to
2,240 GPUs it is within 2.5 %.

p  pipeline stages (axis pp)       t  tensor-parallel GPUs (tp)       d  replicas (dp)
m  micro-batches of a replica      v  chunks: stages on each GPU      b  sequences of a micro-batch

Source: Narayanan et al. 2021, arXiv:2104.04473, sections 2.2 and 3.
"""

from dataclasses import dataclass

from helpers.comm.layout import Layout
from helpers.models.shape import GPTShape
from helpers.simulate import tensor_parallel
from helpers.simulate.collective_time import fastest, seconds
from helpers.simulate.kernels import total
from helpers.simulate.plan import Plan, check
from helpers.simulate.topology import Topology

AXES = ("pp", "dp", "tp")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one training step, for one GPU.

    Attributes:
        computing: of its own micro-batches.
        tp, pp, dp: messages over each axis, for its own micro-batches.
        bubble: it waits, because the pipeline fills and drains.
        micro_batches: m.
        gpus: of the whole cluster.
        flops: of all GPUs together, without what is recomputed.
    """

    computing: float
    tp: float
    pp: float
    bubble: float
    dp: float
    micro_batches: int
    gpus: int
    flops: float

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by cause; their sum is `seconds`."""
        return {name: getattr(self, name) for name in ("computing", "tp", "pp", "bubble", "dp")}

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def efficiency(self) -> float:
        """Computing over the whole step."""
        return self.computing / self.seconds

    @property
    def flops_per_second(self) -> float:
        """What each GPU sustains, without what is recomputed."""
        return self.flops / self.gpus / self.seconds


def step(
    config: GPTShape,
    layout: Layout,
    *,
    cluster: Topology,
    sequences: int,
    tokens: int,
    flops_per_second: float,
    micro: int = 1,
    chunks: int = 1,
    number_bytes: float = 2,
    gradient_bytes: float = 4,
    **work,
) -> Step:
    """One step of a GPT on a layout of the axes pp, dp and tp.

    The layout's order of the axes places the groups on the cluster: the last axis has neighbours.

    Args:
        layout: pp, dp and tp in any order; an axis that is not named has size 1.
        cluster: as many GPUs as the layout has ranks.
        sequences: of the global batch, over all replicas.
        tokens: of a sequence.
        flops_per_second: of one GPU, sustained in matrix products.
        micro: b.
        chunks: v, of the interleaved schedule; 1 is 1F1B or GPipe.
        number_bytes, gradient_bytes: of a number between stages and in the messages over dp.
        work: as `tensor_parallel.step` has it, for example `sequence=True`.

    Raises:
        ValueError: another axis, another number of GPUs, sizes that do not divide, or m that is no
            multiple of p where the schedule is interleaved.
    """
    if unknown := set(layout.axes) - set(AXES):
        raise ValueError(f"{layout.title()}: the axes are pp, dp and tp, not {min(unknown)}")
    plan = Plan(layout=layout, sequences=sequences, tokens=tokens, micro=micro, chunks=chunks)
    check(config, plan, cluster)
    p, t, m, d = *map(plan.ranks, ("pp", "tp")), plan.micro_batches, plan.ranks("dp")
    if config.layers % (p * chunks):
        raise ValueError(f"{config.layers} layers do not divide over {p} x {chunks} stages")
    groups = {axis: cluster.group(group(layout, axis)) for axis in AXES}
    whole = tensor_parallel.step(
        config,
        sequences=micro,
        tokens=tokens,
        topology=groups["tp"],
        flops_per_second=flops_per_second,
        number_bytes=number_bytes,
        **work,
    )
    size = micro * tokens * config.width * number_bytes / (t if work.get("sequence") else 1)
    sends = 2 * chunks * (p > 1)  # forward and backward; a GPU sends and receives at the same time
    each = {
        "computing": whole.computing / p,
        "tp": whole.communication / p,
        "pp": sends * seconds("send", size, groups["pp"]),
    }
    gradients = total(config) / (p * t) * gradient_bytes
    algorithm = fastest("all_reduce", gradients, groups["dp"])
    return Step(
        **{name: m * value for name, value in each.items()},
        bubble=(p - 1) / chunks * sum(each.values()),
        dp=seconds("all_reduce", gradients, groups["dp"], algorithm),
        micro_batches=m,
        gpus=layout.world_size,
        flops=whole.flops * m * d,
    )


def group(layout: Layout, axis: str) -> list[int]:
    """The ranks of the first group along an axis; rank 0 alone if the layout has no such axis."""
    return layout.groups(axis)[0] if axis in layout.axes else [0]
