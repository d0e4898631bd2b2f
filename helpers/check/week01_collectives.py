"""Exercises of week 1, second part: collectives built from messages, and bytes on the wire."""

import math
from numbers import Real

import torch
import torch.distributed as dist

from helpers.check.oracle import NotRight, examine
from helpers.check.traffic import Traffic, examine_messages, steps
from helpers.check.verdict import Verdict
from helpers.comm.collectives import ring_reduce_scatter
from helpers.comm.cost import sent
from helpers.comm.ledger import store_ports
from helpers.measure.sockets import SentBytes


def observed(solve, *args):
    """Call on this rank: what it returned, the calls that it made, the requests left open."""
    with Traffic() as traffic:
        answer = solve(*args)
    return answer, {"calls": traffic.calls, "unwaited": traffic.unwaited()}


def bytes_sent(calls) -> int:
    return sum(call.nbytes for call in calls if call.name == "send")


def named(ranks) -> str:
    ranks = list(ranks)
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


# ---- a broadcast along a tree

BROADCASTS = [(4, 0), (2, 1), (5, 3), (8, 6), (1, 0)]  # ranks, source


def tree_broadcast(fn) -> Verdict:
    """Check `fn(worker, tensor, source)`: the source's numbers on every rank, in place.

    Messages only, N-1 in all, in ceil(log2 N) steps: in each step a rank sends at most one.
    """
    cases = [(ranks, {"source": source}) for ranks, source in BROADCASTS]
    return examine_messages("tree_broadcast", fn, cases, run_tree_broadcast, judge_tree_broadcast)


def run_tree_broadcast(worker, solve, source):
    tensor = 10.0 * worker.rank + torch.arange(3)
    answer, seen = observed(solve, worker, tensor, source)
    returned = answer.tolist() if isinstance(answer, torch.Tensor) else None
    return {"after": tensor.tolist(), "returned": returned, **seen}


def judge_tree_broadcast(runs, source):
    n, after = len(runs), runs.column("after")
    own = [[10.0 * rank + k for k in range(3)] for rank in range(n)]
    if after != [own[source]] * n:
        listing = "\n".join(f"  rank {r} holds {values}" for r, values in enumerate(after))
        finding = f"from source {source}, {own[source]}\n{listing}"
        raise NotRight(finding, hint_tree_broadcast(after, own, source, runs.column("returned")))
    sends = [sum(call.name == "send" for call in calls) for calls in runs.column("calls")]
    if sum(sends) > n - 1:
        raise NotRight(
            f"{sum(sends)} messages, where {n - 1} ranks lack the numbers",
            "Some rank is sent what it has already.",
        )
    fewest, taken = (n - 1).bit_length(), steps(runs.column("calls"))
    if taken > fewest:
        listing = "\n".join(f"  rank {r} sends {k}" for r, k in enumerate(sends))
        finding = f"right, but {taken} steps one after another; {fewest} can do\n{listing}"
        raise NotRight(finding, hint_steps(sends, source))


def hint_tree_broadcast(after, own, source, returned) -> str:
    n = len(after)
    if source and after == [own[0]] * n:
        return "All have rank 0's numbers. Who is the source?"
    if after[source] != own[source]:
        return "The source's own numbers have changed: does it receive something?"
    if all(returned[r] == own[source] for r in range(n) if r != source):
        return "The numbers were returned. The caller looks into the tensor that it handed over."
    if after == own:
        return (
            "Every rank holds what it held before. `tensor = …` only gives a name to another "
            "tensor; which calls write into the one that was handed over?"
        )
    lacking = [r for r in range(n) if after[r] == own[r] and r != source]
    if lacking:
        return (
            f"{named(lacking).capitalize()} got nothing. Draw for {n} ranks who has the numbers "
            "after each step; the last step need not be a full one."
        )
    return "Some rank passed on numbers before it had got the source's."


def hint_steps(sends, source) -> str:
    if sends[source] == sum(sends):
        return "The source sends every message itself. Who else has the numbers after one step?"
    if max(sends) == 1:
        return "Each rank sends once and then rests. What could it do while the next one sends?"
    return "In some step a rank has the numbers and sends nothing, while others still lack them."


# ---- a ring that takes any size

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
    return [float((i + 1) * BASE**rank) for i in range(numel)]


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
        f"  rank {r} sends {len(calls)} messages, {size} bytes"
        for r, (calls, size) in enumerate(zip(sends, sizes, strict=True))
    )
    finding = f"the right sum of {numel} numbers ({8 * numel} bytes), but\n{listing}"
    for calls in sends:
        if len({call.peer for call in calls}) > 1:
            to = named(sorted({call.peer for call in calls}))
            finding += f"\n  and one of them to {to}"
            if max(sizes) > most:
                raise NotRight(
                    finding, "One rank carries more than its part. In a ring nobody is special."
                )
            raise NotRight(finding, "To how many others does a rank of a ring send?")
    if max(sizes) <= most:
        return
    if any(call.nbytes == 8 * numel for calls in sends for call in calls):
        raise NotRight(finding, "Whole buffers went round. What is the smallest piece that can?")
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
        return "The sum was returned. The caller looks into the tensor that it handed over."
    if after == [contribution(r, numel) for r in range(n)]:
        return (
            "Every rank holds what it held before. `tensor = …` only gives a name to another "
            "tensor; what writes into the one that was handed over?"
        )
    wrong = [[i for i in range(numel) if row[i] != total[i]] for row in after]
    found = [[counts(value, i, n) for i, value in enumerate(row)] for row in after]
    if not all(wrong):
        right = [r for r in range(n) if not wrong[r]]
        return f"{named(right).capitalize()} alone has the sum. How do the others get it?"
    rest = list(range(numel - numel % n, numel))
    if rest and all(positions == rest for positions in wrong):
        return f"The last {len(rest)} were left out: {numel} numbers are not divisible by {n}."
    if any(value in total and value != total[i] for r in after for i, value in enumerate(r)):
        return "A finished chunk lies where another belongs: which one comes in, at which step?"
    sends = max(sum(call.name == "send" for call in calls) for calls in traffic)
    if any(times and max(times) > 1 for row in found for times in row):
        if sends > 2 * (n - 1):
            return (
                f"Some numbers came round to a rank that had added them already: a rank sent "
                f"{sends} messages. How many steps does a chunk take to meet every rank once?"
            )
        return (
            "Some numbers are in the sum more than once. Is a chunk that comes in always to be "
            "added, in both phases?"
        )
    if sends <= n - 1 and all(len(positions) < numel for positions in wrong):
        return "Each rank has one finished chunk and no more: that is half of the way."
    if all(len(positions) <= -(-numel // n) for positions in wrong):
        return "On each rank one chunk was left out. In each phase, how many must come in?"
    return (
        "Follow one chunk around the ring: what does each rank add to it, and is it the chunk "
        "with all that was added so far that it passes on?"
    )


# ---- an all-to-all from messages

EXCHANGES = [(2, 1), (4, 3), (3, 50_000), (1, 2)]  # ranks, numbers in a part


def all_to_all(fn) -> Verdict:
    """Check `fn(worker, parts) -> list`: entry s is a tensor of its own with rank s's part for me.

    Messages only; no rank sends more than its N-1 parts for others.
    """
    cases = [(ranks, {"numel": numel}) for ranks, numel in EXCHANGES]
    return examine_messages("all_to_all", fn, cases, run_all_to_all, judge_all_to_all)


def part(source: int, target: int, numel: int) -> torch.Tensor:
    """Number k is `source target k`, as three digits."""
    return 100.0 * source + 10 * target + torch.arange(numel) % 10


def run_all_to_all(worker, solve, numel):
    n, rank = worker.world_size, worker.rank
    parts = [part(rank, target, numel) for target in range(n)]
    answer, seen = observed(solve, worker, list(parts))
    kept = [part(rank, target, numel) for target in range(n)]
    seen["changed"] = [d for d in range(n) if not torch.equal(parts[d], kept[d])]
    if not isinstance(answer, list | tuple):
        return {"entries": None, "kind": type(answer).__name__, **seen}
    entries = [
        torch.equal(one, part(source, rank, numel)) or first_wrong(one, source, rank, numel)
        if isinstance(one, torch.Tensor) and one.shape == (numel,)
        else f"{'shape ' + str(tuple(one.shape)) if isinstance(one, torch.Tensor) else repr(one)}"
        for source, one in enumerate(answer)
    ]
    tensors = [one for one in answer if isinstance(one, torch.Tensor)]
    inputs = {one.untyped_storage().data_ptr() for one in parts}
    seen["aliases"] = any(one.untyped_storage().data_ptr() in inputs for one in tensors)
    seen["same"] = len({one.data_ptr() for one in tensors}) < len(tensors)
    return {"entries": entries, "kind": type(answer).__name__, **seen}


def first_wrong(one: torch.Tensor, source: int, rank: int, numel: int) -> float:
    return one[one != part(source, rank, numel)][0].item()


def judge_all_to_all(runs, numel):
    n = len(runs)
    for rank, run in enumerate(runs):
        if run["changed"]:
            raise NotRight(
                f"rank {rank}'s parts for {named(run['changed'])} have changed",
                "The parts belong to the caller. Receive into tensors of your own.",
            )
    for rank, run in enumerate(runs):
        found = run["entries"]
        if found is None:
            raise NotRight(
                f"rank {rank} returned {run['kind']}",
                "Return a list: entry s is what rank s had for this rank.",
            )
        if len(found) == n - 1:
            raise NotRight(
                f"rank {rank} returned {n - 1} entries for {n} ranks",
                "One is missing: is there a rank that sends no message to this one?",
            )
        if len(found) != n:
            raise NotRight(f"rank {rank} returned {len(found)} entries for {n} ranks", "One each.")
    for rank, run in enumerate(runs):
        if wrong := [s for s, entry in enumerate(run["entries"]) if entry is not True]:
            listing = "\n".join(
                f"  entry {s} of rank {rank}: {say(entry, s, rank, numel)}"
                for s, entry in enumerate(run["entries"])
            )
            finding = f"each part holds {numel} numbers\n{listing}"
            raise NotRight(finding, hint_all_to_all(runs, wrong, rank, numel))
    for rank, run in enumerate(runs):
        if run["aliases"]:
            raise NotRight(
                f"rank {rank}: a tensor that was returned shares its memory with one of `parts`",
                "If the caller writes into one of them, the other changes, too.",
            )
    sizes = [bytes_sent(calls) for calls in runs.column("calls")]
    most = (n - 1) * numel * 4
    if max(sizes) > most:
        listing = "\n".join(f"  rank {r} sends {size} bytes" for r, size in enumerate(sizes))
        raise NotRight(
            f"right, but\n{listing}\nwhere {most} would do",
            "Does a part go by way of a rank that it is not for, or to ranks that have no use "
            "for it?",
        )


def origin(entry, numel) -> tuple[int, int] | None:
    """(source, target) of the part that a wrong number belongs to."""
    if isinstance(entry, bool | str) or entry != entry or not 0 <= entry < 1000 or entry % 1:
        return None
    return (int(entry) // 100, int(entry) // 10 % 10)


def say(entry, source, rank, numel) -> str:
    if entry is True:
        return "right"
    if isinstance(entry, str):
        return entry
    whose = origin(entry, numel)
    if whose is None or whose == (source, rank) or whose == (0, 0):
        return f"{entry:g}, wrong"
    return f"{entry:g}: rank {whose[0]}'s part for rank {whose[1]}"


def hint_all_to_all(runs, wrong, rank, numel) -> str:
    entries = runs[rank]["entries"]
    if runs[rank]["same"]:
        return "Several entries are one and the same tensor: what comes in last is in all of them."
    if wrong == [rank]:
        return "Only the entry from the rank itself is wrong. No message brings that one."
    if any(isinstance(entry, str) for entry in entries):
        return "Each entry is one tensor, of the same shape as a part."
    whose = [origin(entries[s], numel) for s in wrong]
    if all(w and w[1] == rank for w in whose):
        return "The right parts, in another order: entry s is to be rank s's, whenever it came in."
    if all(w and w[0] == rank for w in whose):
        return "A rank still holds its own parts. Where did those of the others go?"
    if all(w and w[0] == s for w, s in zip(whose, wrong, strict=True)):
        return "From the right ranks, but these were meant for others: which part goes where?"
    return "Which part does rank s send to rank d, and into which entry does d receive it?"


# ---- bytes on the wire

SIZE = 1_200_000  # bytes: a multiple of 4 bytes × 2, 3 and 4 ranks; headers are small beside it
HEADERS = 4096  # bytes: gloo's, 48 a message, and the barriers'; far less than a chunk
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")
LARGE = (64, 10**9)  # ranks, bytes: by formula


def bytes_on_the_wire(fn) -> Verdict:
    """Check `fn(collective, ranks, size) -> bytes` against bytes that ranks really send.

    Size is the whole buffer, in bytes. What one rank sends, by the least there can be; for
    "broadcast", where they differ, all ranks together. Counted by the kernel on 1 to 4 ranks
    (by formula where it does not tell), and for many ranks by formula.
    """
    return examine("bytes_on_the_wire", fn, [(n, {}) for n in (4, 2, 3, 1)], run_bytes, judge_bytes)


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
            "answer": answer.item() if isinstance(answer, torch.Tensor) else answer,
            "large": solve(collective, *LARGE) if n > 1 else None,
            "kernel": count.read(),
            "formula": sent(collective, SIZE, n, rank=worker.rank, backend="nccl"),
        }
    return rows


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
    many, size = LARGE
    for collective in COLLECTIVES * (n > 1):
        by_rank = [sent(collective, size, many, rank=r, backend="nccl") for r in range(many)]
        right = sum(by_rank) if collective == "broadcast" else by_rank[0]
        answer = runs[0][collective]["large"]
        text = f"with {many} ranks the formula says {right:,.0f}"
        compare(collective, answer, many, size, right, text, 2)


def compare(collective, answer, n, size, right, text, more):
    """Raise NotRight unless the answer is `right`, which may be too large by `more` bytes."""
    if isinstance(answer, bool) or not isinstance(answer, Real):
        raise NotRight(f"{collective}: returned {answer!r}", "Return one number: of bytes.")
    if not -2 <= right - answer <= more:
        raise NotRight(
            f"{collective} of {size:,} bytes on {n} ranks: you said {answer:,.10g} bytes; {text}",
            hint_bytes(collective, answer, n, size),
        )


def hint_bytes(collective, answer, n, size) -> str:
    """Which well-known mistake gives this answer?"""
    share, last = size / n, n - 1
    right = {"all_reduce": 2 * last * share, "broadcast": last * size}.get(collective, last * share)

    def near(value):
        return math.isclose(answer, value, rel_tol=1e-6)

    if n == 1:
        return "A rank that is alone has nobody to send to."
    if near(right * n / last):
        return (
            "One too many: how many *other* ranks are there, or how many steps until all is done?"
        )
    if near(right / 4):
        return "Bytes are asked for. Did you count numbers of four bytes?"
    if collective == "all_reduce" and near(last * share):
        return "That is one phase of the ring. How many has it?"
    if collective == "broadcast" and answer < right:
        return "Of a broadcast all ranks together are asked for: how many ranks get the buffer?"
    if collective in ("all_gather", "reduce_scatter", "all_to_all") and near(2 * right):
        return "That is as much as a whole all-reduce sends. What is this one a part of?"
    if near(right * n):
        return "Do whole buffers travel, or parts? And is one rank asked for, or all together?"
    if collective != "broadcast" and answer > right:
        return (
            "More than there need be: what does a rank hold already, and what is for nobody else?"
        )
    return "Draw it for 2 ranks, then for 3: who sends which part how often?"
