"""Exercises of week 6: the bytes that a rank holds and sends, by stage of ZeRO."""

from collections.abc import Callable

from helpers.check import hidden
from helpers.check.exercise import Edit, among
from helpers.check.number import Number
from helpers.check.sent import bytes_of_ranks

# bytes_per_rank

KINDS = ("parameters", "gradients", "optimizer")
MIXED, FP32 = (2, 2, 12), (4, 4, 8)


def held(params, ranks, stage, parameters, gradients, optimizer) -> dict[str, float]:
    """What is sharded is padded first; what is whole is not."""
    shard, whole = -(-params // ranks), params
    return {
        "parameters": (shard if stage >= 3 else whole) * parameters,
        "gradients": (shard if stage >= 2 else whole) * gradients,
        "optimizer": (shard if stage >= 1 else whole) * optimizer,
    }


def stages(*first: int) -> Edit:
    """Other stages as the first that shards each kind."""
    old = [f"{n} else whole) * {kind}" for n, kind in zip((3, 2, 1), KINDS, strict=True)]
    new = [f"{n} else whole) * {kind}" for n, kind in zip(first, KINDS, strict=True)]
    return Edit(*(text for pair in zip(old, new, strict=True) for text in pair))


def of_each(change: Callable) -> Callable:
    """The reference with other bytes of a parameter: change(parameters, gradients, optimizer)."""
    return lambda params, ranks, stage, *each: held(params, ranks, stage, *change(*each))


SHARD = "-(-params // ranks)"
PADDING = (
    (Edit(SHARD, "params / ranks"), "A buffer is padded until every rank has an equal shard, of "
     "whole numbers. How many numbers has a shard then?"),
    (Edit(SHARD, "params // ranks"), Edit(SHARD, "round(params / ranks)"), "The last numbers are "
     "on no rank: the division left a tail. How large must a shard be, so that all shards together "
     "hold every number?"),
    (Edit(SHARD, "params // ranks + 1"), "A length that the ranks divide needs no padding. How do "
     "you round up?"),
)  # fmt: skip
bytes_per_rank = Number(
    right=held,
    names=KINDS,
    kind=dict,
    unit="bytes",
    close=1e-12,
    draw=among(params=(10, 10**9), ranks=(2, 99), stage=(0, 3), parameters=[2, 4],
               gradients=[2, 4], optimizer=[8, 12]),
    cases=(  # parameters, ranks, stage, bytes of each kind
        *((f"7.5B parameters on 64 ranks, stage {stage}", (7_500_000_000, 64, stage, *MIXED))
          for stage in range(4)),
        ("all in fp32, stage 1", (1200, 4, 1, *FP32)),
        ("a length that 4 ranks do not divide, stage 1", (1001, 4, 1, *MIXED)),
        ("a length that 8 ranks do not divide, stage 3", (1001, 8, 3, *MIXED)),
        ("fewer parameters than ranks, stage 2", (3, 8, 2, *MIXED)),
        ("one rank, stage 3", (1001, 1, 3, *MIXED)),
    ),
    slips=(
        *PADDING,
        (stages(9, 9, 9), "That is all of each kind. Which kinds does a stage shard?"),
        (stages(1, 1, 1), stages(1, 2, 3), stages(3, 1, 2), stages(3, 3, 1), stages(3, 1, 1),
         stages(2, 2, 1), stages(3, 2, 2), stages(4, 3, 2), stages(2, 1, 0), "Which stage is the "
         "first to shard each kind? Not every stage shards all three."),
        (Edit("ranks), params", "ranks), -(-params // ranks) * ranks"), "Only what is sharded "
         "needs padding."),
        (of_each(lambda *each: (1, 1, 1)), "Return bytes: how many has each number?"),
        (Edit(SHARD, "-(-params // ranks) / ranks"), "Divided by the ranks twice: a shard is one "
         "of N equal parts."),
        (of_each(lambda *each: [sum(each)] * 3), "That counts all kinds. How many bytes has each "
         "kind of one parameter?"),
        (of_each(lambda *each: (2, 2, 12)), "For mixed precision alone. The bytes of each kind "
         "are arguments."),
        (of_each(lambda p, g, o: (p, g, o - 4)), "Without the fp32 copy of the parameter. Use "
         "optimizer_bytes: it counts everything."),
        (of_each(lambda p, g, o: (p, g, o - 8)), "Without the two moments. Use optimizer_bytes: "
         "it counts everything."),
    ),
    last="How many numbers of this kind does a rank have at this stage, and how many bytes has "
    "each of them?",
)  # fmt: skip

# bytes_per_step

PARAMS = 60_000  # a multiple of 2 and 3; headers are small beside the messages
STAGES = (0, 1, 2, 3)
NUMBER = 4  # bytes


def calls(stage: int, micro_batches: int) -> tuple[str, ...]:
    """The collectives of a step. Stages 0 and 1 send the sum of all micro-batches."""
    add, spread = ("reduce_scatter",), ("all_gather",)
    return {
        0: ("all_reduce",),
        1: add + spread,
        2: micro_batches * add + spread,
        3: micro_batches * (add + 2 * spread),
    }[stage]


def collectives(stage: int, micro_batches: int) -> int:
    """How many reduce-scatters and all-gathers; an all-reduce is one of each."""
    return len(calls(stage, micro_batches)) + (stage == 0)


def step_bytes(params, ranks, stage, number_bytes, micro_batches) -> float:
    return collectives(stage, micro_batches) * params * number_bytes * (ranks - 1) / ranks


def steps():
    asked = [
        (f"stage {stage} on {n} rank{'s' * (n > 1)}, {m} micro-batch{'es' * (m > 1)}",
         (PARAMS, n, stage, NUMBER, m))
        for n, m in ((3, 1), (2, 3), (1, 1)) for stage in STAGES
    ]  # fmt: skip
    n = 64 + hidden.shift(60)
    large = [(f"stage {stage} on {n} ranks", (n * 117_187_500, n, stage, 2, 4)) for stage in STAGES]
    return asked + large


def kernel_counts(ranks: int, micro_batches: int) -> list[int | None]:
    """The most bytes that a rank really sends, by stage; None: the system does not count."""
    plans = [calls(stage, micro_batches) for stage in STAGES]
    return [sent and max(sent) for sent in bytes_of_ranks(ranks, NUMBER * PARAMS, *plans)]


def say_step(found, right, params, ranks, stage, number_bytes, micros) -> str:
    told = f"{ranks} ranks were asked for, and the formula says {right:,.0f}"
    if params == PARAMS and (sent := kernel_counts(ranks, micros)[stage]) is not None:
        told = f"one rank sent {sent:,} (the operating system counted, headers included)"
    return (
        f"{params:,} parameters of {number_bytes} bytes, micro-batches: {micros}\n"
        f"  you said {found:,.10g} bytes; {told}"
    )


def counting(number: Callable) -> Callable:
    """The bytes for other numbers of collectives, by stage: `number(micro-batches)`."""

    def change(b, g):
        return b * number(g.micro_batches)[g.stage] / collectives(g.stage, g.micro_batches)

    return change


bytes_per_step = Number(
    right=step_bytes,
    unit="bytes",
    cases=steps,
    say=say_step,
    close=2e-9,
    slips=(
        (lambda b, g: collectives(g.stage, g.micro_batches) * g.params * g.number_bytes,
         lambda b, g: b * g.ranks / max(1, g.ranks - 1) or 1.0 * g.params * g.number_bytes,
         "That is for infinitely many ranks. A rank keeps its own shard: which part of the buffer "
         "does it send?"),
        (lambda b, g: b / g.ranks, "Of which size is the buffer that a ring carries around: the "
         "whole buffer, or a shard?"),
        (lambda b, g: b * g.ranks, "That is what all ranks together send. One rank is asked for."),
        (counting(lambda m: (1, 2, m + 1, 3 * m)), counting(lambda m: (1, 1, m + 1, 3 * m)), "How "
         "many phases has the ring of an all-reduce?"),
        (counting(lambda m: (2, 1, m, 3 * m)), counting(lambda m: (2, 1, m + 1, 3 * m)),
         counting(lambda m: (2, 2, m, 3 * m)), "After the reduce-scatter each rank updates its "
         "shard. What is sent then?"),
        (counting(lambda m: (2, 2, m + 1, 2 * m)), counting(lambda m: (2, 2, m + 1, m + 1)), "The "
         "parameters are freed after the forward. What does the backward need?"),
        (counting(lambda m: (2, 2, m + 1, m + 2)), "Each micro-batch frees the parameters twice. "
         "How often are they gathered in a step?"),
        (counting(lambda m: (2, 2, m + 1, 2 * m + 1)), "In stage 3 the gradients are sent after "
         "each micro-batch, too: no rank has room for their sum."),
        (counting(lambda m: (2, 2, 2, 3)), counting(lambda m: (2, 2, 2, 3 * m)), "Stages 2 and 3 "
         "send for each micro-batch: no rank has room for the sum of all gradients. Which messages "
         "are sent again?"),
        (counting(lambda m: (2 * m, 2 * m, m + 1, 3 * m)),
         counting(lambda m: (2 * m, m + 1, m + 1, 3 * m)),
         counting(lambda m: (2 * m, 2 * m, 2 * m, 3 * m)), "Gradients of micro-batches can be "
         "added up on the rank, and sent once. Which stages can do that?"),
        (counting(lambda m: (2, 2, 2 * m, 3 * m)), "The updated parameters are sent once in a "
         "step, after the last micro-batch."),
        (counting(lambda m: (2, 2, m + 1, 4 * m)), "Too many messages in stage 3. Which two need "
         "the whole parameters, and what is sent of the gradients?"),
        (lambda b, g: b or 1.0 * g.params, "A single rank has no other rank to send to."),
    ),
    last="Write down the collectives of one step, in order. A reduce-scatter or an all-gather of a "
    "buffer sends (N-1)/N of its bytes from each rank.",
)  # fmt: skip
