"""Exercises of week 1: a tree broadcast, a ring all-reduce and an all-to-all, from messages."""

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.answers import plain, short
from helpers.check.exercise import Edit
from helpers.check.traffic import ByMessages, bytes_sent, named, observed, steps
from helpers.check.verdict import NotRight


def exchange(going, to, coming, source):
    """Send and receive at once."""
    for request in (dist.isend(going, to), dist.irecv(coming, source)):
        request.wait()


COPY = (
    "Every rank holds what it held before. `tensor = …` only gives a name to another tensor; which "
    "calls write into the one that was handed over?"
)
RETURNED = "Your function returned the result. The caller reads the tensor that it passed in."


# tree_broadcast


def run_tree(worker, solve, source):
    first = 100.0 * hidden.shift(99) + 10 * worker.rank
    tensor = torch.tensor([first + k for k in range(3)])
    answer, seen = observed(solve, worker, tensor, source)
    return {**seen, "what is returned": plain(answer), "the tensor": tensor}


def tree(worker, tensor, source):
    n = worker.world_size
    away, have = (worker.rank - source) % n, 1
    while have < n:
        if away < have and away + have < n:
            dist.send(tensor, (worker.rank + have) % n)
        elif have <= away < 2 * have:
            dist.recv(tensor, (worker.rank - have) % n)
        have *= 2


def judge_tree(trace, right, n, case):
    sends = [sum(call.name == "send" for call in calls) for calls in trace["calls"]]
    if sum(sends) > n - 1:
        words = f"{sum(sends)} messages, where {n - 1} ranks lack the numbers"
        raise NotRight(words, "Some rank receives numbers that it has already.")
    fewest, taken = (n - 1).bit_length(), steps(trace["calls"])
    if taken > fewest:
        listing = "\n".join(f"  rank {r} sends {k}" for r, k in enumerate(sends))
        hint = "In some step a rank has the numbers and sends nothing, while others lack them."
        if sends[case["source"]] == sum(sends):
            hint = FLAT
        elif max(sends) == 1:
            hint = CHAIN
        raise NotRight(
            f"right, but {taken} steps one after another; {fewest} can do\n{listing}", hint
        )


def flat(worker, tensor, source):
    if worker.rank != source:
        dist.recv(tensor, source)
        return
    for rank in range(worker.world_size):
        if rank != source:
            dist.send(tensor, rank)


def chain(worker, tensor, source):
    n = worker.world_size
    away = (worker.rank - source) % n
    if away > 0:
        dist.recv(tensor, (worker.rank - 1) % n)
    if away < n - 1:
        dist.send(tensor, (worker.rank + 1) % n)


def beyond(worker, tensor, source):
    n, have = worker.world_size, 1
    away = (worker.rank - source) % n
    while have < n:
        if away < have:
            dist.send(tensor, worker.rank + have)
        elif away < 2 * have:
            dist.recv(tensor, (worker.rank - have) % n)
        have *= 2


FLAT = "The source sends every message itself. Which other rank has them after one step?"
CHAIN = "Each rank sends once and then rests. What could it do while the next rank sends?"
tree_broadcast = ByMessages(
    name="tree_broadcast",
    right=tree,
    run=run_tree,
    cases=tuple((n, {"source": source}) for n, source in ((4, 0), (2, 1), (5, 3), (8, 6), (1, 0))),
    free=("calls", "what is returned"),
    rule=judge_tree,
    slips=(
        (Edit("n = worker.world_size", "n, source = worker.world_size, 0"), "Every rank has rank "
         "0's numbers. Which rank is the source?"),
        (Edit("while have < n:", "while 2 * have <= n:"), "Some ranks got nothing. Draw for 5 "
         "ranks which ranks have the numbers after each step. In the last step some ranks may have "
         "nothing to send."),
        (Edit("n = worker.world_size", "n, tensor = worker.world_size, tensor.clone()"), COPY),
        (Edit("n = worker.world_size", "n, tensor = worker.world_size, tensor.clone()",
              "        have *= 2", "        have *= 2\n    return tensor"), RETURNED),
        (Edit("        have *= 2", "        have *= 2\n    if away == 0:\n        tensor.zero_()"),
         "The source's own numbers have changed: does the source receive a message?"),
        (Edit("        have *= 2", "        have *= 2\n    if n > 1 and away == 0:\n        "
              "dist.send(tensor, (source + 1) % n)\n    if n > 1 and away == 1:\n        "
              "dist.recv(tensor, source)"), "Some rank receives numbers that it has already."),
        (flat, FLAT),
        (chain, CHAIN),
    ),
    failures=(
        (r"there is no rank", "The ranks are numbered from 0. What comes after the last, what "
         "before 0?", beyond),
    ),
    last="Draw which ranks have the numbers after each step. Does a rank pass them on before it "
    "has got them?",
)  # fmt: skip


# ring_all_reduce

BASE = 100  # two digits for each rank


def contribution(rank: int, numel: int) -> list[float]:
    """Position i holds (i+1) 100^rank: in a sum, each pair of digits is one rank's."""
    first = 1 + hidden.shift(80)
    return [float((i + first) * BASE**rank) for i in range(numel)]


def run_ring(worker, solve, numel):
    tensor = torch.tensor(contribution(worker.rank, numel), dtype=torch.float64)
    answer, seen = observed(solve, worker, tensor)
    return {**seen, "what is returned": plain(answer), "the tensor": tensor}


def ring(worker, tensor):
    n, rank = worker.world_size, worker.rank
    chunks = tensor.tensor_split(n)  # views
    for step in range(2 * (n - 1)):
        coming = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(coming)
        exchange(chunks[(rank - step) % n], (rank + 1) % n, incoming, (rank - 1) % n)
        if step < n - 1:
            coming += incoming
        else:
            coming.copy_(incoming)


def judge_ring(trace, right, n, case):
    numel = case["numel"]
    if n == 1 or numel < n:
        return
    most = 2 * (n - 1) * -(-numel // n) * 8
    sends = [[call for call in calls if call.name == "send"] for calls in trace["calls"]]
    sizes = [bytes_sent(calls) for calls in trace["calls"]]
    listing = "\n".join(
        f"  rank {rank} messages sent: {len(calls)}, bytes: {size}"
        for rank, (calls, size) in enumerate(zip(sends, sizes, strict=True))
    )
    finding = f"the right sum of {numel} numbers ({8 * numel} bytes), but\n{listing}"
    for calls in sends:
        peers = sorted({call.peer for call in calls})
        if len(peers) > 1:
            few = "To how many other ranks does a rank of a ring send?"
            hint = UNEQUAL if max(sizes) > most else few
            raise NotRight(f"{finding}\n  and one of them sends to {named(peers)}", hint)
    if max(sizes) > most:
        whole = any(call.nbytes == 8 * numel for calls in sends for call in calls)
        raise NotRight(finding, WHOLE if whole else LONGER)


def through_rank_0(worker, tensor):
    n, incoming = worker.world_size, torch.empty_like(tensor)
    for rank in range(1, n):
        if worker.rank == 0:
            dist.recv(incoming, rank)
            tensor += incoming
        elif worker.rank == rank:
            dist.send(tensor, 0)
    for rank in range(1, n):
        if worker.rank == 0:
            dist.send(tensor, rank)
        elif worker.rank == rank:
            dist.recv(tensor, 0)


def to_rank_0(worker, tensor):
    incoming = torch.empty_like(tensor)
    for rank in range(1, worker.world_size):
        if worker.rank == 0:
            dist.recv(incoming, rank)
            tensor += incoming
        elif worker.rank == rank:
            dist.send(tensor, 0)


def whole_buffers(worker, tensor):
    n, rank, going = worker.world_size, worker.rank, tensor.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(going)
        exchange(going, (rank + 1) % n, incoming, (rank - 1) % n)
        tensor += incoming
        going = incoming


UNEQUAL = "One rank sends more than its part. In a ring all ranks send equally much."
WHOLE = "Whole buffers went round the ring. Which smaller piece would be enough?"
LONGER = (
    "More than a ring needs. After how many steps has a chunk met every rank, and after how many "
    "more does every rank have it?"
)
OFTEN = (
    "Some numbers are in the sum more than once. Is a chunk that comes in always to be added, in "
    "both phases?"
)
FOLLOW = (
    "Follow one chunk around the ring: what does each rank add to it? Does each rank pass on the "
    "chunk with everything that was added so far?"
)
ROUND = "range(2 * (n - 1))"
ring_all_reduce = ByMessages(
    name="ring_all_reduce",
    right=ring,
    run=run_ring,
    cases=tuple(
        (n, {"numel": numel}) for n, numel in ((4, 8), (4, 10), (2, 5), (4, 3), (3, 0), (1, 3))
    ),
    free=("calls", "what is returned"),
    rule=judge_ring,
    slips=(
        (Edit(ROUND, "range(n - 1)"), "Each rank has one finished chunk only: that is half of the "
         "way."),
        (Edit(ROUND, "range(max(0, 2 * n - 3))"), "On each rank one chunk was left out. How many "
         "chunks must arrive in each phase?"),
        (Edit("step < n - 1", "step < n - 2"), "One sum was left out. With how many other ranks "
         "must a chunk meet before it is finished?"),
        (Edit("step < n - 1", "step < n"), OFTEN),
        (Edit("step < n - 1", "True"), OFTEN),
        (Edit(ROUND, "range((n > 1) * (2 * n - 1))", "step < n - 1", "True"), "Some numbers came "
         "round to a rank that had added them already. How many steps does a chunk take to meet "
         "every rank once?"),
        (Edit("step < n - 1", "False"), FOLLOW),
        (Edit("chunks = tensor.tensor_split(n)  # views", "chunks = tensor.tensor_split(n)\n"
              "    own = tensor.clone().tensor_split(n)", "exchange(chunks[", "exchange(own["),
         FOLLOW),
        (Edit("            coming.copy_(incoming)", "            coming.copy_(incoming)\n"
              "    tensor /= n"), "That is the mean over the ranks. The exercise asks for the "
              "sum."),
        (Edit("tensor.tensor_split(n)  # views", "tensor[: len(tensor) // n * n].tensor_split(n)"),
         "The last numbers were left out: the size is not divisible by the number of ranks."),
        (Edit("chunks = tensor", "tensor = tensor.clone()\n    chunks = tensor"), COPY),
        (Edit("chunks = tensor", "tensor = tensor.clone()\n    chunks = tensor",
              "            coming.copy_(incoming)", "            coming.copy_(incoming)\n"
              "    return tensor"), RETURNED),
        (to_rank_0, "Rank 0 alone has the sum. How do the others get it?"),
        (through_rank_0, UNEQUAL),
        (whole_buffers, WHOLE),
        (Edit(ROUND, "range((n > 1) * (2 * n - 1))"), LONGER),
    ),
    last=FOLLOW,
)  # fmt: skip


# all_to_all


def part(source: int, target: int, numel: int) -> torch.Tensor:
    """Number k is `source target k`, as three digits."""
    return 1000.0 * hidden.shift(99) + 100 * source + 10 * target + torch.arange(numel) % 10


def run_exchange(worker, solve, numel):
    n, rank = worker.world_size, worker.rank
    parts = [part(rank, target, numel) for target in range(n)]
    answer, seen = observed(solve, worker, list(parts))
    changed = [d for d in range(n) if not torch.equal(parts[d], part(rank, d, numel))]
    listed = isinstance(answer, list | tuple)
    tensors = [one for one in answer if isinstance(one, torch.Tensor)] if listed else []
    inputs = {one.untyped_storage().data_ptr() for one in parts}
    return {
        **seen,
        "changed": tuple(f"its part for rank {d}" for d in changed),
        "form": f"a list of {len(answer)}" if listed else short(plain(answer)),
        "entries": plain(answer) if listed else None,
        "entries of one tensor": len(tensors) - len({one.data_ptr() for one in tensors}),
        "entries in the memory of `parts`": sum(
            one.untyped_storage().data_ptr() in inputs for one in tensors
        ),
    }


def exchange_parts(worker, parts):
    n, rank = worker.world_size, worker.rank
    result = [torch.empty_like(part) for part in parts]
    result[rank].copy_(parts[rank])
    for step in range(1, n):
        to, source = (rank + step) % n, (rank - step) % n
        exchange(parts[to], to, result[source], source)
    return result


def judge_exchange(trace, right, n, case):
    sizes, most = [bytes_sent(calls) for calls in trace["calls"]], (n - 1) * case["numel"] * 4
    if max(sizes) > most:
        listing = "\n".join(f"  rank {r} sends {size} bytes" for r, size in enumerate(sizes))
        raise NotRight(f"right, but\n{listing}\nwhere {most} would do", DETOUR)


DETOUR = "Does a part pass through a rank that does not need it, or go to ranks that do not need "
"it?"
ALL_PARTS = "exchange(parts[to], to, result[source], source)"
all_to_all = ByMessages(
    name="all_to_all",
    right=exchange_parts,
    run=run_exchange,
    cases=tuple((n, {"numel": numel}) for n, numel in ((3, 2), (4, 1), (2, 50_000), (1, 2))),
    free=("calls",),
    rule=judge_exchange,
    slips=(
        (Edit("result = [torch.empty_like(part) for part in parts]", "result = parts"), "The parts "
         "belong to the caller. Receive into tensors of your own."),
        (Edit("result = [torch.empty_like(part) for part in parts]", "result = list(parts)"), "The "
         "parts belong to the caller. Receive into tensors of your own."),
        (Edit("return result", "return torch.stack(result)"), "Return a list: entry s is what rank "
         "s had for this rank."),
        (Edit("return result", "return [one for one in result if one is not result[rank]]"), "One "
         "entry is missing: does some rank send no message to this rank?"),
        (Edit("    result[rank].copy_(parts[rank])", "    result[rank].zero_()"), "Only the entry "
         "from the rank itself is wrong. No message brings that entry."),
        (Edit("result[rank].copy_(parts[rank])", "result[rank] = parts[rank]"), "An entry is one "
         "of `parts` itself. If the caller writes into one of the two, the other changes, too."),
        (Edit("[torch.empty_like(part) for part in parts]", "[torch.empty_like(parts[0])] * n"),
         "Several entries are the same tensor: the last message is in all of them."),
        (Edit("return result", "return result[rank:] + result[:rank]"), "The right parts, in "
         "another order: entry s must be rank s's part, whenever it arrives."),
        (Edit("return result", "return result[::-1]"), "The right parts, in another order: entry s "
         "must be rank s's part, whenever it arrives."),
        (Edit(ALL_PARTS, "result[to].copy_(parts[to])"), "A rank still holds its own parts. Where "
         "did the other ranks' parts go?"),
        (Edit(ALL_PARTS, "exchange(parts[source], to, result[source], source)"), "From the right "
         "ranks, but meant for other ranks: which part goes where?"),
        (Edit(ALL_PARTS, "exchange(parts[rank], to, result[source], source)"), "From the right "
         "ranks, but meant for other ranks: which part goes where?"),
        (Edit(ALL_PARTS, ALL_PARTS + "\n        " + ALL_PARTS), DETOUR),
    ),
    last="Which part does rank s send to rank d, and into which entry does d receive it?",
)  # fmt: skip
