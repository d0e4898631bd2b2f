"""Exercise of week 6: bytes that a rank sends in a step, by stage, beside counted bytes."""

import math

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine, is_number
from helpers.check.verdict import Verdict
from helpers.comm.collectives import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from helpers.comm.ledger import store_ports
from helpers.measure.sockets import SentBytes
from helpers.plans.zero_traffic import zero_traffic

PARAMS = 60_000  # a multiple of 2 and 3; headers are small beside the messages
CASES = [(3, 1), (2, 3), (1, 1)]  # ranks, micro-batches
HEADERS = 8192  # bytes: gloo's, and the barriers'; far less than a chunk
STAGES = (0, 1, 2, 3)


def bytes_per_step(fn) -> Verdict:
    """Check `fn(params, ranks, stage, number_bytes, micro_batches)` against bytes that ranks send.

    The kernel counts on 1 to 3 ranks (a formula where the kernel does not count), and a formula
    gives the answer for many ranks.
    """
    cases = [(ranks, {"micro_batches": micros}) for ranks, micros in CASES]
    return examine("bytes_per_step", fn, cases, run_step, judge_step)


def large(stage: int) -> tuple[int, ...]:
    """Parameters, ranks, the stage, bytes of a number, micro-batches: asked for by formula."""
    ranks = 64 + hidden.shift(60)
    return ranks * 117_187_500, ranks, stage, 2, 4


def run_step(worker, solve, micro_batches):
    """The messages of a step of each stage, with nothing computed between them."""
    n, rows = worker.world_size, {}
    whole = torch.zeros(PARAMS)
    shard = torch.zeros(PARAMS // n)
    for stage in STAGES:
        answer = solve(PARAMS, n, stage, whole.itemsize, micro_batches)
        dist.barrier()
        count = SentBytes(without_ports=store_ports())
        for call in messages(stage, micro_batches):
            call(whole, shard)
        dist.barrier()  # all that was sent has been received: it can be counted
        rows[stage] = {
            "answer": plain(answer),
            "large": plain(solve(*large(stage))) if n > 1 else None,
            "kernel": count.read(),
        }
    return rows


def messages(stage: int, micro_batches: int) -> list:
    """The collectives of a step, in order: stages 0 and 1 send the sum of all micro-batches."""

    def reduce(whole, shard):
        ring_reduce_scatter(shard, whole)

    def gather(whole, shard):
        ring_all_gather(whole, shard)

    match stage:
        case 0:
            return [lambda whole, shard: ring_all_reduce(whole)]
        case 1:
            return [reduce, gather]
        case 2:
            return [reduce] * micro_batches + [gather]
        case _:
            return [gather, gather, reduce] * micro_batches


def plain(answer):
    return answer.item() if isinstance(answer, torch.Tensor) else answer


def judge_step(runs, micro_batches):
    n = len(runs)
    counted = all(run[stage]["kernel"] is not None for run in runs for stage in STAGES)
    how = "the operating system counted, headers included" if counted else "by formula"
    for stage in STAGES:
        right = formula(PARAMS, n, stage, 4, micro_batches)
        most = max(run[stage]["kernel"] for run in runs) if counted else right
        given = (PARAMS, n, stage, 4, micro_batches)
        text = f"one rank sent {most:,.0f} ({how})"
        compare(runs[0][stage]["answer"], given, most, text, HEADERS)
    if n > 1:
        for stage in STAGES:
            given = large(stage)
            right = formula(*given)
            text = f"{given[1]} ranks were asked for, and the formula says {right:,.0f}"
            compare(runs[0][stage]["large"], given, right, text, 2)


def formula(params, ranks, stage, number_bytes, micro_batches) -> float:
    traffic = zero_traffic(
        params,
        ranks,
        stage,
        parameter_bytes=number_bytes,
        gradient_bytes=number_bytes,
        micro_batches=micro_batches,
    )
    return sum(traffic.values())


def compare(answer, given, right, text, more):
    """Raise NotRight unless the answer is `right`, which may be too large by `more` bytes."""
    params, _, stage, number_bytes, micros = given
    where = (
        f"stage {stage}, {params:,} parameters of {number_bytes} bytes, {micros} micro-batch"
        f"{'es' * (micros > 1)}"
    )
    if not is_number(answer):
        raise NotRight(f"{where}: returned {answer!r}", "Return one number of bytes.")
    if not -2 <= right - answer <= more:
        raise NotRight(
            f"{where}: you said {answer:,.10g} bytes; {text}", hint_traffic(answer, *given)
        )


def hint_traffic(answer, params, ranks, stage, number_bytes, micros) -> str:
    """Which common mistake gives this answer?"""
    right, around = formula(params, ranks, stage, number_bytes, micros), (ranks - 1) / ranks
    unit = params * number_bytes * around  # of one reduce-scatter, or of one all-gather
    if ranks == 1:
        return "A single rank has no other rank to send to."
    gathers = {
        0: "How many phases has the ring of an all-reduce?",
        1: "After the reduce-scatter each rank updates its shard. What is sent then?",
        2: "After the reduce-scatter each rank updates its shard. What is sent then?",
        3: "The parameters are freed after the forward. What does the backward need?",
    }
    known = [
        (right / around, "That is for infinitely many ranks. A rank keeps its own shard: which "
         "part of the buffer does it send?"),
        (right / number_bytes, "Return bytes. That is how many numbers there are."),
        (right * 8, "Return bytes, not bits."),
        (right / ranks, "Of which size is the buffer that a ring carries around: the whole "
         "buffer, or a shard?"),
        (right * ranks, "That is what all ranks together send. One rank is asked for."),
        (right - unit, gathers[stage]),
        (right - micros * unit, gathers[stage]),
    ]  # fmt: skip
    if stage == 3 and micros > 1:  # first: it may equal another mistake's number
        again = (
            "Each micro-batch frees the parameters twice. How often are they gathered in a step?"
        )
        known.insert(0, ((micros + 2) * unit, again))
    if micros > 1:
        once = formula(params, ranks, stage, number_bytes, 1)
        known += [
            (once, f"Stage {stage} sends for each micro-batch: no rank has room for the sum of "
             "all gradients. Which messages are sent again?"),
            (right * micros, "Gradients of micro-batches can be added up on the rank, and sent "
             "once. Which stages can do that?"),
            (once * micros, "The updated parameters are sent once in a step, after the last "
             "micro-batch." if stage == 2 else "The gradients of all micro-batches can be added "
             "up on the rank first. How often are they sent then?"),
        ]  # fmt: skip
    if stage == 3:
        known.append((micros * unit + unit, gathers[3]))
    for value, hint in known:
        if math.isclose(answer, value, rel_tol=1e-6):
            return hint
    return (
        "Write down the collectives of one step, in order. A reduce-scatter or an all-gather of a "
        "buffer sends (N-1)/N of its bytes from each rank."
    )
