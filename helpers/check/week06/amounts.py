"""Exercises of week 6: the bytes that a rank holds and sends, by stage of ZeRO."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
import torch.distributed as dist

from helpers.check import elsewhere, hidden
from helpers.check.answers import is_number, short
from helpers.check.exercise import Exercise, Number
from helpers.check.verdict import NotRight
from helpers.comm.collectives import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from helpers.comm.ledger import store_ports
from helpers.measure.sockets import SentBytes

# bytes_per_rank

KINDS = ("parameters", "gradients", "optimizer")
MIXED, FP32 = (2, 2, 12), (4, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Held:
    """The reference in pieces: what is sharded is padded first; what is whole is not."""

    first: Mapping = field(  # the first stage that shards a kind
        default_factory=lambda: {"parameters": 3, "gradients": 2, "optimizer": 1}
    )
    shard: Callable = lambda params, ranks: -(-params // ranks)
    whole: Callable = lambda params, ranks: params
    each: Callable = lambda kind, all_bytes: all_bytes[kind]
    bytes: Callable = lambda nbytes, ranks: nbytes

    def __call__(self, params, ranks, stage, *each) -> dict[str, float]:
        found = {}
        for kind in KINDS:
            count = (self.shard if stage >= self.first[kind] else self.whole)(params, ranks)
            nbytes = count * self.each(kind, dict(zip(KINDS, each, strict=True)))
            found[kind] = self.bytes(nbytes, ranks)
        return found


def by_kind(solve, *arguments) -> dict:
    answer = solve(*arguments)
    known = isinstance(answer, dict) and set(answer) == set(KINDS)
    return {kind: answer[kind] for kind in KINDS} if known else {"returned": answer}


class ByKind(Exercise):
    def complaint(self, facet, found, right, case):
        if found is None:
            hint = (
                f"Return a dict with a number of bytes for each of {', '.join(map(repr, KINDS))}."
            )
            return NotRight("your function returned no such dict", hint)
        if not is_number(found):
            return NotRight(f"{facet}: {short(found)}", "Each value is one number of bytes.")
        words = f"you said {found:,.10g} bytes of {facet}; a rank has {right:,.10g}"
        return NotRight(words, f"How many numbers of {facet} does a rank have at stage "
                        f"{case.arguments[2]}, and how many bytes has each of them?")  # fmt: skip


def stages(parameters, gradients, optimizer) -> Held:
    return Held(first={"parameters": parameters, "gradients": gradients, "optimizer": optimizer})


def without(nbytes: int) -> Held:
    return Held(each=lambda kind, each: each[kind] - nbytes * (kind == "optimizer"))


def drawn_model(random):
    params, ranks = random.randint(10, 10**9), random.randint(2, 99)
    return "another model", (params, ranks, random.randint(0, 3), *random.choice((MIXED, FP32)))


FIRST = "Which stage is the first to shard each kind? Not every stage shards all three."
UNITS = "Return bytes: no bits, no number of parameters, and not divided by 1e9 or 2**30."
bytes_per_rank = ByKind(
    name="bytes_per_rank",
    right=Held(),
    play=by_kind,
    close=1e-12,
    draw=drawn_model,
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
        (Held(shard=lambda params, ranks: params / ranks), "A buffer is padded until every rank "
         "has an equal shard, of whole numbers. How many numbers has a shard then?"),
        (Held(shard=lambda params, ranks: params // ranks), "The last numbers are on no rank: the "
         "division left a tail. How large must a shard be, so that all shards together hold every "
         "number?"),
        (Held(shard=lambda params, ranks: params // ranks + 1), "A length that the ranks divide "
         "needs no padding. How do you round up?"),
        (stages(9, 9, 9), "That is all of each kind. Which kinds does a stage shard?"),
        (stages(1, 1, 1), FIRST),
        (stages(1, 2, 3), FIRST),
        (stages(3, 1, 2), FIRST),
        (stages(3, 3, 1), FIRST),
        (stages(3, 1, 1), FIRST),
        (stages(2, 2, 1), FIRST),
        (Held(whole=lambda params, ranks: -(-params // ranks) * ranks), "Only what is sharded "
         "needs padding."),
        (Held(each=lambda kind, each: 1), UNITS),
        (Held(bytes=lambda nbytes, ranks: 8 * nbytes), UNITS),
        (Held(bytes=lambda nbytes, ranks: nbytes / 1e9), UNITS),
        (Held(bytes=lambda nbytes, ranks: nbytes / 2**30), UNITS),
        (Held(shard=lambda params, ranks: -(-params // ranks) / ranks), "Divided by the ranks "
         "twice: a shard is one of N equal parts."),
        (Held(each=lambda kind, each: sum(each.values())), "That counts all kinds. How many bytes "
         "has each kind of one parameter?"),
        (without(4), "Without the fp32 copy of the parameter. Use optimizer_bytes: it counts "
         "everything."),
        (without(8), "Without the two moments. Use optimizer_bytes: it counts everything."),
    ),
)  # fmt: skip

# bytes_per_step

PARAMS = 60_000  # a multiple of 2 and 3; headers are small beside the messages
STAGES = (0, 1, 2, 3)
NUMBER = 4  # bytes


def collectives(stage: int, micro_batches: int) -> int:
    """How many reduce-scatters and all-gathers; an all-reduce is one of each.

    Stages 0 and 1 send the sum of all micro-batches.
    """
    return {0: 2, 1: 2, 2: micro_batches + 1, 3: 3 * micro_batches}[stage]


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


@cache
def kernel_counts(ranks: int, micro_batches: int) -> dict[int, int | None]:
    """The most bytes that a rank really sends, by the operating system; None: it does not count."""
    runs = elsewhere.here(count_sent, ranks, None, {"micro_batches": micro_batches})
    columns = {stage: [run[stage] for run in runs] for stage in STAGES}
    return {stage: None if None in sent else max(sent) for stage, sent in columns.items()}


def count_sent(worker, solve, micro_batches) -> dict[int, int | None]:
    """The messages of a step of each stage, with nothing computed between them."""
    found, whole = {}, torch.zeros(PARAMS)
    shard = torch.zeros(PARAMS // worker.world_size)
    for stage in STAGES:
        dist.barrier()
        count = SentBytes(without_ports=store_ports())
        if stage == 0:
            ring_all_reduce(whole)
        gathers, sums = {1: (1, 1), 2: (1, micro_batches)}.get(
            stage, (2 * micro_batches, micro_batches) if stage else (0, 0)
        )
        for _ in range(sums):
            ring_reduce_scatter(shard, whole)
        for _ in range(gathers):
            ring_all_gather(whole, shard)
        dist.barrier()  # all that was sent has been received: it can be counted
        found[stage] = count.read()
    return found


def say_step(found, right, params, ranks, stage, number_bytes, micros) -> str:
    told = f"{ranks} ranks were asked for, and the formula says {right:,.0f}"
    if params == PARAMS and (sent := kernel_counts(ranks, micros)[stage]) is not None:
        told = f"one rank sent {sent:,} (the operating system counted, headers included)"
    return (
        f"{params:,} parameters of {number_bytes} bytes, micro-batches: {micros}\n"
        f"  you said {found:,.10g} bytes; {told}"
    )


def counting(number: Callable) -> Callable:
    """The bytes for another number of collectives, `number(stage, micro-batches)`."""

    def change(b, g):
        return b * number(g.stage, g.micro_batches) / collectives(g.stage, g.micro_batches)

    return change


ACCUMULATE = (
    "Gradients of micro-batches can be added up on the rank, and sent once. Which stages can do "
    "that?"
)
SENT_THEN = "After the reduce-scatter each rank updates its shard. What is sent then?"
bytes_per_step = Number(
    name="bytes_per_step",
    right=step_bytes,
    unit="bytes",
    cases=steps,
    say=say_step,
    close=2e-9,
    slips=(
        (lambda b, g: b * g.ranks / max(1, g.ranks - 1) or 1.0 * g.params * g.number_bytes,
         "That is for infinitely many ranks. A rank keeps its own shard: which part of the buffer "
         "does it send?"),
        (lambda b, g: collectives(g.stage, g.micro_batches) * g.params * g.number_bytes, "That is "
         "for infinitely many ranks. A rank keeps its own shard: which part of the buffer does it "
         "send?"),
        (lambda b, g: b / g.number_bytes, "Return bytes. That is how many numbers there are."),
        (lambda b, g: b * 8, "Return bytes, not bits."),
        (lambda b, g: b / g.ranks, "Of which size is the buffer that a ring carries around: the "
         "whole buffer, or a shard?"),
        (lambda b, g: b * g.ranks, "That is what all ranks together send. One rank is asked for."),
        (counting(lambda stage, m: (1, 2, m + 1, 3 * m)[stage]), "How many phases has the ring of "
         "an all-reduce?"),
        (counting(lambda stage, m: (2, 1, m, 3 * m)[stage]), SENT_THEN),
        (counting(lambda stage, m: (2, 1, m + 1, 3 * m)[stage]), SENT_THEN),
        (counting(lambda stage, m: (2, 2, m, 3 * m)[stage]), SENT_THEN),
        (counting(lambda stage, m: (2, 2, m + 1, 2 * m)[stage]), "The parameters are freed after "
         "the forward. What does the backward need?"),
        (counting(lambda stage, m: (2, 2, m + 1, m + 1)[stage]), "The parameters are freed after "
         "the forward. What does the backward need?"),
        (counting(lambda stage, m: (2, 2, m + 1, m + 2)[stage]), "Each micro-batch frees the "
         "parameters twice. How often are they gathered in a step?"),
        (counting(lambda stage, m: (2, 2, 2, 3)[stage]), "Stages 2 and 3 send for each "
         "micro-batch: no rank has room for the sum of all gradients. Which messages are sent "
         "again?"),
        (counting(lambda stage, m: (2, 2, 2, 3 * m)[stage]), "Stages 2 and 3 send for each "
         "micro-batch: no rank has room for the sum of all gradients. Which messages are sent "
         "again?"),
        (counting(lambda stage, m: (2 * m, 2 * m, m + 1, 3 * m)[stage]), ACCUMULATE),
        (counting(lambda stage, m: (2 * m, m + 1, m + 1, 3 * m)[stage]), ACCUMULATE),
        (counting(lambda stage, m: (2 * m, 2 * m, 2 * m, 3 * m)[stage]), ACCUMULATE),
        (counting(lambda stage, m: (2, 2, 2 * m, 3 * m)[stage]), "The updated parameters are sent "
         "once in a step, after the last micro-batch."),
        (lambda b, g: b or 1.0 * g.params, "A single rank has no other rank to send to."),
    ),
    last="Write down the collectives of one step, in order. A reduce-scatter or an all-gather of a "
    "buffer sends (N-1)/N of its bytes from each rank.",
)  # fmt: skip
