"""All messages of a training step on a rank, by recipe: dp with ZeRO, tp, cp, ep, pp.

B  sequences of a micro-batch on a rank        T  tokens        D  width        e  bytes of a number
m  micro-batches        N  ranks of the axis tp

    tp    a block has two layers that are cut by columns, then by rows. Each sends B T D e bytes:
          an all-reduce in the forward, and one in the backward. So does the embedding in the
          forward, and the head in the backward. The loss sends B T maxima and 2 B T sums.
          Sequence parallelism replaces each all-reduce by a reduce-scatter and an all-gather.
    pp    B T D e bytes for each Message of the schedule: activations forward, gradients backward
    cp    keys and values, or heads, as in `sequence_traffic`; a rank has T / cp tokens
    ep    the rows of a mixture of experts, as in `expert_traffic`
    dp    gradients and parameters, as in `zero_traffic`: over dp, cp and ep together, but those of
          experts over dp and cp
    sums  the count of targets, the loss, the gradients that are partial sums, the global norm

Sources: Shoeybi et al. 2019, arXiv:1909.08053, section 3 (tp); Korthikanti et al. 2022,
arXiv:2205.05198, section 4.2.2 (sequence parallelism); Narayanan et al. 2021, arXiv:2104.04473,
section 3 (pp).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from helpers.plans.expert_traffic import expert_messages
from helpers.plans.messages import Message, together
from helpers.plans.schedules import Schedule
from helpers.plans.schedules.messages import sent as sent_by
from helpers.plans.sequence_traffic import attention_messages
from helpers.plans.zero_memory import padded, stage_of
from helpers.plans.zero_traffic import buckets, zero_messages

SCALAR = 8  # bytes of a loss, a count or a norm: float64
DATA = ("dp", "cp", "ep")  # the axes along which ranks have different tokens


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A parameter on a rank, before ZeRO cuts it.

    Attributes:
        numbers: on this rank.
        cut: whether the ranks along tp have different parts of it.
        partial: whether its gradient is a partial sum over tp, whatever is between the layers.
        expert: whether the ranks along ep have different parts of it.
    """

    numbers: int
    cut: bool = False
    partial: bool = False
    expert: bool = False


Rows = Mapping[str, Mapping[str, Tensor]]  # row of ZeRO (unit) -> parameter -> Tensor


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Consecutive blocks of the model on one rank, with the embedding or the head perhaps.

    Attributes:
        routed: how many of the blocks have experts.
    """

    blocks: int
    routed: int = 0
    first: bool = True
    last: bool = True


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """What the messages of a step depend on: the recipe, and sizes.

    Attributes:
        sizes: axis -> ranks, in the layout's order: {"pp": 2, "dp": 2, "tp": 2}.
        width: D.
        sequences, tokens: B and T of a micro-batch. cp divides T.
        stages: of each rank of the pipeline, those on this rank.
        rows: of each rank of the pipeline; in the order of definition.
        micro_batches: m.
        schedule: of the pipeline.
        layers: pairs of cut layers in a block: 2, or 1 without an MLP.
        recompute: "none", "selective" or "full".
        number_bytes: e, also of parameters in the messages.
        gradient_bytes: of a gradient over dp.
        loss_bytes: of a logit in the loss: 8 in float64, else 4.
        zero, reshard, kept: as for `zero_messages`; `kept` names rows.
        bucket: bytes that fill a bucket, and the first bucket.
        sequence, again: sequence parallelism; the backward gathers the layers' inputs again.
        shared: names of the parameters on the first and on the last stage: a tied embedding.
        attention: way, heads, key_heads and head_width on a rank, as for `attention_messages`; with
            cp.
        experts: count and chosen, as for `expert_messages`; with ep.
    """

    sizes: Mapping[str, int]
    width: int
    sequences: int
    tokens: int
    stages: Sequence[Sequence[Stage]]
    rows: Sequence[Rows]
    micro_batches: int = 1
    schedule: Schedule | None = None
    layers: int = 2
    recompute: str = "none"
    number_bytes: float = 2
    gradient_bytes: float = 2
    loss_bytes: int = 4
    zero: int = 0
    reshard: bool = True
    kept: frozenset[str] = frozenset()
    bucket: tuple[float, float] = (25 * 2**20, 2**20)
    sequence: bool = False
    again: bool = True
    shared: frozenset[str] = field(default_factory=frozenset)
    attention: Mapping[str, str | int] = field(default_factory=dict)
    experts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self):
        stage_of(self.zero)
        if not len(self.stages) == len(self.rows) == self.ranks("pp"):
            raise ValueError(f"name the stages and the rows of {self.ranks('pp')} pipeline ranks")

    def ranks(self, axis: str) -> int:
        """How many ranks the axis has; 1 if the layout does not name it."""
        return self.sizes.get(axis, 1)

    @property
    def world(self) -> tuple[str, int]:
        """(axis, ranks) of a message over all ranks. A layout of one axis has no other name."""
        ranks = 1
        for size in self.sizes.values():
            ranks *= size
        return (next(iter(self.sizes)) if len(self.sizes) == 1 else "world"), ranks

    def replicas(self, tensors: Mapping[str, Tensor]) -> tuple[str, int]:
        """(axis, ranks) of a message over the ranks that have these tensors: "dp cp"."""
        apart = {"ep"} if any(tensor.expert for tensor in tensors.values()) else set()
        wide = {axis: n for axis, n in self.sizes.items() if axis in {*DATA} - apart and n > 1}
        ranks = math.prod(wide.values())
        whole = len(wide) > 1 and ranks == self.world[1]
        return self.world if whole else (" ".join(wide) or "dp", ranks)

    @property
    def rows_of_tokens(self) -> float:
        """Tokens of a micro-batch on a rank: B T / cp."""
        return self.sequences * self.tokens / self.ranks("cp")

    @property
    def activations(self) -> float:
        """Bytes of B T / cp tokens of D numbers."""
        return self.rows_of_tokens * self.width * self.number_bytes


def step_messages(plan: StepPlan, stage: int = 0) -> list[Message]:
    """List the messages of one step on the ranks of the pipeline's place `stage`."""
    return together(
        [
            *tensor_messages(plan, plan.stages[stage]),
            *context_messages(plan, plan.stages[stage]),
            *row_messages(plan, plan.stages[stage]),
            *pipeline_messages(plan, stage),
            *data_messages(plan, plan.rows[stage]),
            *partial_sums(plan, stage),
            *scalars(plan),
        ]
    )


def tensor_messages(plan: StepPlan, stages: Sequence[Stage]) -> list[Message]:
    """Activations over tp, and the loss of logits that are cut by vocabulary."""
    of, m = {"axis": "tp", "ranks": plan.ranks("tp")}, plan.micro_batches
    forwards = 2 if plan.recompute == "full" else 1
    found = []
    for one in stages:
        pairs = one.blocks * plan.layers * (forwards + 1) + one.first + one.last
        again = one.blocks * plan.layers + one.last - one.routed  # layers that are cut by columns
        # A recomputation stops before its last sum, unless a hand-written call has it inside.
        plain = one.blocks if plan.schedule and plan.schedule.split else one.routed
        sums = pairs - plain * (forwards - 1)
        times = {"all_reduce": sums}
        if plan.sequence:
            times = {"reduce_scatter": sums, "all_gather": pairs + again * plan.again}
        act = {"payload": plan.activations, "what": "activations", **of}
        found += [Message(call=call, times=m * n, **act) for call, n in times.items()]
        row = plan.rows_of_tokens * plan.loss_bytes
        found += [
            Message(call="all_reduce", payload=size, times=m * one.last, what="loss", **of)
            for size in (row, 2 * row)
        ]
    return found


def context_messages(plan: StepPlan, stages: Sequence[Stage]) -> list[Message]:
    """Attention over cp, in each block."""
    if plan.ranks("cp") == 1:
        return []
    sizes = {"length": plan.tokens, "sequences": plan.sequences, "ranks": plan.ranks("cp")}
    sizes |= {"number_bytes": plan.number_bytes, "recompute": plan.recompute}
    times = plan.micro_batches * sum(one.blocks for one in stages)
    return attention_messages(times=times, **sizes, **plan.attention)


def row_messages(plan: StepPlan, stages: Sequence[Stage]) -> list[Message]:
    """Rows over ep, in each block with experts."""
    if plan.ranks("ep") == 1:
        return []
    sizes = {"tokens": plan.rows_of_tokens, "width": plan.width, "ranks": plan.ranks("ep")}
    sizes |= {"number_bytes": plan.number_bytes, "recompute": plan.recompute}
    times = plan.micro_batches * sum(one.routed for one in stages)
    return expert_messages(times=times, **sizes, **plan.experts)


def pipeline_messages(plan: StepPlan, stage: int) -> list[Message]:
    """Activations and their gradients between stages, as the schedule sends them."""
    if plan.schedule is None:
        return []
    order = plan.schedule.orders[stage]
    sends = sum(sent_by(plan.schedule, action) is not None for action in order)
    size = plan.activations / (plan.ranks("tp") if plan.sequence else 1)
    of = {"axis": "pp", "ranks": plan.ranks("pp"), "what": "activations"}
    return [Message(call="send", payload=size, times=sends, **of)]


def data_messages(plan: StepPlan, rows: Rows) -> list[Message]:
    """Gradients and parameters over the ranks that have them: a row's tensors are on the same."""
    sizes = {"parameter_bytes": plan.number_bytes, "gradient_bytes": plan.gradient_bytes}
    if plan.zero == 0:
        together: dict[tuple[str, int], list[int]] = {}
        for row in reversed(rows.values()):
            backward = [tensor.numbers for tensor in reversed(row.values())]
            together.setdefault(plan.replicas(row), []).extend(backward)
        return [
            one
            for (axis, n), numbers in together.items()
            for one in zero_messages(
                buckets(numbers, plan.gradient_bytes, *plan.bucket), n, 0, axis=axis, **sizes
            )
        ]
    options = sizes | {"micro_batches": plan.micro_batches, "reshard": plan.reshard}
    found = []
    for name, row in rows.items():
        axis, n = plan.replicas(row)
        size = padded(sum(tensor.numbers for tensor in row.values()), n)
        found += zero_messages([size], n, plan.zero, kept=name in plan.kept, axis=axis, **options)
    return found


def partial_sums(plan: StepPlan, stage: int) -> list[Message]:
    """Gradients that are partial sums over tp (sequence parallelism) or over a pipeline's ends.

    Before each sum the ranks compare the dtypes of its gradients: 16 bytes for each, sent log2 N
    times if N is a power of 2. Under ZeRO a rank sums its shards, so a gradient that another rank
    has alone is not listed here: shards count as equal.
    """
    tensors = {name: tensor for row in plan.rows[stage].values() for name, tensor in row.items()}
    replicated = {
        name: t for name, t in tensors.items() if t.partial or (plan.sequence and not t.cut)
    }
    places = {place for place, rows in enumerate(plan.rows) for r in rows.values() for n in r
              if n in plan.shared}  # fmt: skip
    tied = {n: t for n, t in tensors.items() if n in plan.shared} if len(places) > 1 else {}
    found = []
    for axis, ranks, summed in (
        ("tp", plan.ranks("tp"), replicated),
        ("pp" if plan.ranks("pp") == 2 else "ends", 2, tied),
    ):
        of = {"axis": axis, "ranks": ranks, "what": "gradients"}
        numbers = sum(
            tensor.numbers / (plan.replicas({name: tensor})[1] if plan.zero else 1)
            for name, tensor in summed.items()
        )
        check = {"payload": 2 * SCALAR * len(summed), "times": (ranks - 1).bit_length()}
        found += [
            Message(call="send", **check, **of | {"what": "dtypes"}),
            Message(call="all_reduce", payload=numbers * plan.gradient_bytes, **of),
        ]
    return found


def scalars(plan: StepPlan) -> list[Message]:
    """The count of targets over dp, cp and ep, the loss over pp too, the norm over all ranks."""
    found = [
        Message(axis=axis, call="all_reduce", payload=SCALAR, ranks=plan.ranks(axis), what=what)
        for axis in (*DATA, "pp")
        for what in ("count", "loss")
        if (axis, what) != ("pp", "count")
    ]
    if plan.zero or any(plan.ranks(axis) > 1 for axis in ("tp", "pp", "ep")):
        axis, ranks = plan.world
        norms = {"payload": SCALAR * regions(plan), "ranks": ranks, "what": "norm"}
        found.append(Message(axis=axis, call="all_reduce", **norms))
    return found


def regions(plan: StepPlan) -> int:
    """Pieces of the plain parameters that different ranks hold: one number each in the norm."""
    count, seen = 0, set()
    for rows in plan.rows:
        for row in rows.values():
            shards = plan.replicas(row)[1] if plan.zero else 1
            size = padded(sum(tensor.numbers for tensor in row.values()), shards) // shards
            start = 0
            for name, tensor in row.items():
                stop = start + tensor.numbers
                pieces = (stop - 1) // size - start // size + 1
                start = stop
                if name not in plan.shared or name not in seen:
                    count += (
                        pieces
                        * (plan.ranks("tp") if tensor.cut else 1)
                        * (plan.ranks("ep") if tensor.expert else 1)
                    )
                seen.add(name)
    return count
