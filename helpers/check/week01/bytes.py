"""Exercise of week 1, second part: bytes of a collective, compared with the bytes sent."""

import math

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine, is_number
from helpers.check.verdict import Verdict
from helpers.comm.collectives import ring_reduce_scatter
from helpers.comm.ledger import store_ports
from helpers.comm.volume import sent
from helpers.measure.sockets import SentBytes

SIZE = 1_200_000  # bytes: a multiple of 4 bytes × 2, 3 and 4 ranks; headers are small beside it
HEADERS = 4096  # bytes: gloo's, 48 a message, and the barriers'; far less than a chunk
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")


def bytes_on_the_wire(fn) -> Verdict:
    """Check `fn(collective, ranks, size) -> bytes` against bytes that ranks really send.

    Size is the whole buffer, in bytes. The answer is the least that one rank can send; for
    "broadcast", where ranks differ, the sum over all ranks. The kernel counts on 1 to 4 ranks (a
    formula where the kernel does not count), and a formula gives the answer for many ranks.
    """
    return examine("bytes_on_the_wire", fn, [(n, {}) for n in (3, 4, 2, 1)], run_bytes, judge_bytes)


def large() -> tuple[int, int]:
    """Ranks, and bytes, that are asked for by formula."""
    ranks = 64 + hidden.shift(60)
    return ranks, ranks * 15_625_000


def run_bytes(worker, solve):
    n, rows = worker.world_size, {}
    for collective in COLLECTIVES:
        answer = solve(collective, n, SIZE)
        buffer = torch.zeros(SIZE // 4)
        part = torch.zeros(SIZE // 4 // n)
        dist.barrier()
        count = SentBytes(without_ports=store_ports())
        do(collective, buffer, part)
        dist.barrier()  # all that was sent has been received: it can be counted
        rows[collective] = {
            "answer": plain(answer),
            "large": plain(solve(collective, *large())) if n > 1 else None,
            "kernel": count.read(),
            "formula": sent(collective, SIZE, n, rank=worker.rank, backend="nccl"),
        }
    return rows


def plain(answer):
    return answer.item() if isinstance(answer, torch.Tensor) and answer.numel() == 1 else answer


def do(collective, buffer, part):
    """The collective, by an algorithm that sends no more than it must."""
    parts = list(buffer.chunk(dist.get_world_size()))
    match collective:
        case "all_reduce":
            dist.all_reduce(buffer)
        case "all_gather":
            dist.all_gather(parts, part)
        case "reduce_scatter":
            ring_reduce_scatter(part, buffer)
        case "all_to_all":
            dist.all_to_all([torch.empty_like(one) for one in parts], parts)
        case "broadcast":
            dist.broadcast(buffer, 0)


def judge_bytes(runs):
    n = len(runs)
    told = all(run[collective]["kernel"] is not None for run in runs for collective in COLLECTIVES)
    how = "the operating system counted, headers included" if told else "by formula"
    for collective in COLLECTIVES:
        answer = runs[0][collective]["answer"]
        counted = [run[collective]["kernel" if told else "formula"] for run in runs]
        together = collective == "broadcast"
        right = sum(counted) if together else max(counted)
        who = "all ranks together" if together else "one rank"
        compare(collective, answer, n, SIZE, right, f"{who} sent {right:,.0f} ({how})", HEADERS)
    many, size = large()
    for collective in COLLECTIVES * (n > 1):
        by_rank = [sent(collective, size, many, rank=r, backend="nccl") for r in range(many)]
        right = sum(by_rank) if collective == "broadcast" else by_rank[0]
        answer = runs[0][collective]["large"]
        text = f"that was asked for {many} ranks, and the formula says {right:,.0f}"
        compare(collective, answer, many, size, right, text, 2)


def compare(collective, answer, n, size, right, text, more):
    """Raise NotRight unless the answer is `right`, which may be too large by `more` bytes."""
    if not is_number(answer):
        raise NotRight(f"{collective}: returned {answer!r}", "Return one number: of bytes.")
    if not -2 <= right - answer <= more:
        raise NotRight(
            f"{collective} of {size:,} bytes: you said {answer:,.10g} bytes; {text}",
            hint_bytes(collective, answer, n, size),
        )


def hint_bytes(collective, answer, n, size) -> str:
    """Which common mistake gives this answer?"""
    share, last = size / n, n - 1
    right = {"all_reduce": 2 * last * share, "broadcast": last * size}.get(collective, last * share)

    def near(value):
        return math.isclose(answer, value, rel_tol=1e-6)

    if n == 1:
        return "A single rank has no other rank to send to."
    if near(right * n / last):
        return "One too many: how many *other* ranks are there, or how many steps does it take?"
    if near(right / 4):
        return "Return bytes. Did you count numbers of four bytes?"
    if collective == "all_reduce" and near(last * share):
        return "That is one phase of the ring. How many phases does a ring have?"
    if collective == "broadcast" and answer < right:
        return "For a broadcast, all ranks together are asked for: how many ranks get the buffer?"
    if collective in ("all_gather", "reduce_scatter", "all_to_all") and near(2 * right):
        return "That is as much as a whole all-reduce sends. Which part of an all-reduce is this?"
    if near(right * n):
        return "`size` is the whole buffer. Does one rank send all of it, or a part of it?"
    if collective != "broadcast" and answer > right:
        return "More than necessary: which part does a rank have already, or need not send?"
    return "Draw it for 2 ranks, then for 3: which rank sends which part, and how often?"
