"""Exercise of week 1, second part: a ring all-reduce that takes any size."""

import math

import torch

from helpers.check import hidden
from helpers.check.oracle import NotRight
from helpers.check.traffic import bytes_sent, examine_messages, named, observed
from helpers.check.verdict import Verdict

RINGS = [(4, 8), (4, 10), (2, 5), (4, 3), (3, 0), (1, 3)]  # ranks, numbers
BASE = 100  # two digits for each rank


def ring_all_reduce(fn) -> Verdict:
    """Check `fn(worker, tensor)`: the sum over the ranks in each of them, in place, by a ring.

    Messages to one neighbour only; each rank sends 2(N-1) chunks of ceil(numel/N) numbers, or less.
    """
    cases = [(ranks, {"numel": numel}) for ranks, numel in RINGS]
    return examine_messages(
        "ring_all_reduce", fn, cases, run_ring_all_reduce, judge_ring_all_reduce
    )


def contribution(rank: int, numel: int) -> list[float]:
    """Position i holds (i+1) 100^rank: in a sum, each pair of digits is one rank's."""
    first = 1 + hidden.shift(80)
    return [float((i + first) * BASE**rank) for i in range(numel)]


def run_ring_all_reduce(worker, solve, numel):
    tensor = torch.tensor(contribution(worker.rank, numel), dtype=torch.float64)
    answer, seen = observed(solve, worker, tensor)
    returned = answer.tolist() if isinstance(answer, torch.Tensor) else None
    return {"after": tensor.tolist(), "returned": returned, **seen}


def judge_ring_all_reduce(runs, numel):
    n, after, traffic = len(runs), runs.column("after"), runs.column("calls")
    total = [
        sum(column) for column in zip(*(contribution(r, numel) for r in range(n)), strict=True)
    ]
    if after != [total] * n:
        rank = next(r for r in range(n) if after[r] != total)
        i = next(i for i in range(numel) if after[rank][i] != total[i])
        listing = "\n".join(
            f"  rank {r}: {sum(a != b for a, b in zip(row, total, strict=True))} wrong"
            for r, row in enumerate(after)
        )
        finding = (
            f"{numel} numbers; rank r had (i+1)·{BASE}^r at position i.\n"
            f"Rank {rank}, position {i}: {after[rank][i]:.10g}, the sum is {total[i]:.10g}"
            f"{in_words(counts(after[rank][i], i, n))}\n{listing}"
        )
        raise NotRight(
            finding, hint_ring_all_reduce(after, total, runs.column("returned"), traffic)
        )
    if n == 1 or numel < n:
        return
    judge_ring_traffic(n, numel, traffic)


def judge_ring_traffic(n, numel, traffic):
    most = 2 * (n - 1) * -(-numel // n) * 8
    sends = [[call for call in calls if call.name == "send"] for calls in traffic]
    sizes = [bytes_sent(calls) for calls in traffic]
    listing = "\n".join(
        f"  rank {r} messages sent: {len(calls)}, bytes: {size}"
        for r, (calls, size) in enumerate(zip(sends, sizes, strict=True))
    )
    finding = f"the right sum of {numel} numbers ({8 * numel} bytes), but\n{listing}"
    for calls in sends:
        if len({call.peer for call in calls}) > 1:
            to = named(sorted({call.peer for call in calls}))
            finding += f"\n  and one of them sends to {to}"
            if max(sizes) > most:
                raise NotRight(
                    finding,
                    "One rank sends more than its part. In a ring all ranks send equally much.",
                )
            raise NotRight(finding, "To how many other ranks does a rank of a ring send?")
    if max(sizes) <= most:
        return
    if any(call.nbytes == 8 * numel for calls in sends for call in calls):
        raise NotRight(
            finding, "Whole buffers went round the ring. Which smaller piece would be enough?"
        )
    raise NotRight(
        finding,
        f"No rank needs to send more than {most} bytes here. After how many steps has a chunk met "
        "every rank, and after how many more does every rank have it?",
    )


def counts(value: float, i: int, n: int) -> list[int] | None:
    """How often each rank's number of position i is in the value; None: it is made of others."""
    if not math.isfinite(value) or value != int(value) or not 0 <= value < BASE**n:
        return None
    digits = [int(value) // BASE**rank % BASE for rank in range(n)]
    return None if any(d % (i + 1) for d in digits) else [d // (i + 1) for d in digits]


def in_words(found) -> str:
    if found is None:
        return ""
    lacks = [r for r, times in enumerate(found) if times == 0]
    often = [f"rank {r}'s {k} times" for r, k in enumerate(found) if k > 1]
    parts = [f"the number of {named(lacks)} is not in it"] * bool(lacks) + often
    return f" ({'; '.join(parts)})"


def hint_ring_all_reduce(after, total, returned, traffic) -> str:
    n, numel = len(after), len(total)
    if all(row == total for row in returned):
        return "Your function returned the sum. The caller reads the tensor that it passed in."
    if after == [contribution(r, numel) for r in range(n)]:
        return (
            "Every rank holds what it held before. `tensor = …` or `chunks[i] = …` only "
            "names another tensor; what writes into the one that was handed over?"
        )
    wrong = [[i for i in range(numel) if row[i] != total[i]] for row in after]
    found = [[counts(value, i, n) for i, value in enumerate(row)] for row in after]
    if not all(wrong):
        right = [r for r in range(n) if not wrong[r]]
        return f"{named(right).capitalize()} alone has the sum. How do the others get it?"
    rest = list(range(numel - numel % n, numel))
    if rest and all(positions == rest for positions in wrong):
        return f"The last {len(rest)} were left out: {numel} numbers are not divisible by {n}."
    if all(value == t / n for row in after for value, t in zip(row, total, strict=True)):
        return "That is the mean over the ranks. The exercise asks for the sum."
    if any(value in total and value != total[i] for r in after for i, value in enumerate(r)):
        return "A finished chunk is in the place of another: which chunk arrives at which step?"
    sends = max(sum(call.name == "send" for call in calls) for calls in traffic)
    if any(times and max(times) > 1 for row in found for times in row):
        if sends > 2 * (n - 1):
            return (
                f"Some numbers came round to a rank that had added them already: a rank sent "
                f"{sends} messages. How many steps does a chunk take to meet every rank once?"
            )
        if sends <= n - 1:
            return (
                "Some numbers are in a chunk more than once. Which chunk does a rank pass on in "
                "the second step: one that has just grown, or one that it has sent before?"
            )
        return (
            "Some numbers are in the sum more than once. Is a chunk that comes in always to be "
            "added, in both phases?"
        )
    if sends <= n - 1 and all(len(positions) < numel for positions in wrong):
        return "Each rank has one finished chunk only: that is half of the way."
    if all(len(positions) <= -(-numel // n) for positions in wrong):
        return "On each rank one chunk was left out. How many chunks must arrive in each phase?"
    return (
        "Follow one chunk around the ring: what does each rank add to it? Does each rank pass on "
        "the chunk with everything that was added so far?"
    )
