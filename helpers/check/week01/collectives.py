"""Exercises of week 1 on ranks: sums and means, and collectives made from messages."""

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.exercise import Edit
from helpers.check.ranks import DIFFER, OnRanks
from helpers.check.traffic import UNSENT, ByMessages, bytes_sent, steps

# global_mean

SHARDS = (  # each rank's values: lists of different lengths on purpose, one of them empty
    [[4.0]],
    [[1.0, 2.0, 3.0], [10.0]],
    [[5.0, 7.0], [], [1.0, -2.0, 3.0, 8.0]],
    [[0.1], [0.2, 0.4]],  # float32 has other numbers
    [[2.0], [4.0, 4.0], [6.0, 6.0, 6.0], [1.0, 1.0, 1.0, 1.0, 1.0]],
)


def drawn_shards(random) -> list[list[float]]:
    return [[float(random.randint(-9, 9)) for _ in range(count)] for count in (2, 0, 5)]


def shards_by_rank():
    every = (*SHARDS, *hidden.more(drawn_shards, 2))
    return [(len(shards), {"shards": shards}) for shards in every]


def mean(worker, values):
    count = torch.tensor(float(len(values)), dtype=torch.float64)
    sums = torch.stack([values.sum(), count])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


DIVIDE = "(sums[0] / sums[1]).item()"
OVER_RANKS = "(sums[0] / worker.world_size).item()"
global_mean = OnRanks(
    right=mean,
    given=lambda worker, shards: (torch.tensor(shards[worker.rank], dtype=torch.float64),),
    cases=shards_by_rank,
    close=1e-10,
    also=lambda answer, values: {"a Python float": isinstance(answer, float)},
    slips=(
        (Edit(DIVIDE, "sums[0] / sums[1]"), "The mean is right, as a tensor. Which method of a "
         "tensor gives its number, a Python float?"),
        (Edit("values.sum(), count])", "values.sum(), count]).float()"), "It is right to seven "
         "digits. The values are float64: which line makes a float32 tensor?"),
        (Edit(DIVIDE, "sums[0].item()"), "That is the sum of all values. How many values do all "
         "ranks hold together?"),
        (Edit(DIVIDE, OVER_RANKS), "That is the sum divided by the number of ranks. Ranks are not "
         "values."),
        (Edit("values.sum()", "values.mean()", DIVIDE, OVER_RANKS), "That is the mean of the "
         "ranks' means: one value of a rank counts as much as three of another. And a rank without "
         "values has no mean: 0/0."),
        (Edit("values.sum()", "values.mean().nan_to_num()", DIVIDE, OVER_RANKS),
         Edit("values.sum()", "values.mean().nan_to_num()", "float(len(values))",
              "float(len(values) > 0)"),
         "That is the mean of the ranks' means. Should a rank with one value count as much as a "
         "rank with three values?"),
        (Edit("dist.all_reduce(sums)", "pass"),
         Edit("dist.all_reduce(sums)", "sums[1] += sums[1] == 0"),
         "Each rank returned the mean of its own values. Which numbers must the ranks exchange?"),
        (Edit(DIVIDE, "(sums[0] / len(values)).item() if len(values) else 0.0"), "The sum is over "
         "all ranks, and the count is this rank's. How many values do all ranks hold together?"),
    ),
    last="Which two numbers must every rank know before the division?",
)  # fmt: skip


# sum_uneven

COUNTS = ((3, 3, 2, 2), (0, 2), (1, 0, 4), (2,), (0, 0))  # gradients of each rank
SIZE = 3  # numbers of a gradient


def value(rank: int, step: int) -> float:
    """In a sum, each decimal digit belongs to one rank."""
    return float((step + 1 + hidden.shift(5)) * 10**rank)


def gradients_of(worker, counts):
    every = range(counts[worker.rank])
    return [torch.full((SIZE,), value(worker.rank, step)) for step in every], SIZE


def uneven(worker, gradients, size):
    steps = torch.tensor(len(gradients))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    sums = []
    for step in range(int(steps)):
        total = torch.zeros(size)
        if step < len(gradients):
            total += gradients[step]
        dist.all_reduce(total)
        sums.append(total)
    return sums


sum_uneven = OnRanks(
    right=uneven,
    given=gradients_of,
    cases=tuple((len(counts), {"counts": counts}) for counts in COUNTS),
    slips=(
        (Edit("dist.ReduceOp.MAX", "dist.ReduceOp.MIN"), "You stopped at the shortest list, and "
         "gradients are lost. Which length do you need?"),
        (Edit(", op=dist.ReduceOp.MAX", ""), "Those are as many steps as gradients. The ranks make "
         "one step at the same time."),
        (Edit("    return sums", "    return [total / worker.world_size for total in sums]"),
         "That is the mean over the ranks. The sum is asked for."),
        (Edit("return sums", "return sums[: len(gradients)]"), "The ranks returned lists of "
         "different lengths. How many steps has the longest list?"),
        (Edit("total += gradients[step]", "total += gradients[step]\n        elif gradients:\n"
              "            total += gradients[-1]"), "A rank with no gradient left counts as zero. "
         "What does it contribute here?"),
        (Edit("if step < len(gradients)", "if step < len(gradients) and len(gradients) == steps"),
         "The steps that only some ranks have lack gradients. Which ranks are in each sum?"),
    ),
    failures=(
        (rf"a hang|{DIFFER}", "Some ranks make more calls than others. How can every rank "
         "know, before the loop, how many calls the longest list needs?",
         Edit("range(int(steps))", "range(len(gradients))")),
        (r"IndexError", "This rank has no gradient for that step. What can it contribute to the "
         "sum?", Edit("if step < len(gradients):", "if True:")),
    ),
    last="Which ranks are in the sum? A digit of it is one rank's, and rank 0's is the last.",
)  # fmt: skip


# tree_broadcast


def exchange(going, to, coming, source):
    """Send and receive at once."""
    for request in (dist.isend(going, to), dist.irecv(coming, source)):
        request.wait()


def numbers_of(worker, source):
    place = f"of rank {worker.rank} of {worker.world_size} from {source}"
    more = torch.tensor(hidden.shifts(3, 99, place))
    return 100.0 * more + 10 * worker.rank + torch.arange(3), source


def tree(worker, tensor, source):
    n = worker.world_size
    away, have = (worker.rank - source) % n, 1
    while have < n:
        if away < have and away + have < n:
            dist.send(tensor, (worker.rank + have) % n)
        elif have <= away < 2 * have:
            dist.recv(tensor, (worker.rank - have) % n)
        have *= 2


def count_messages(trace, source):
    """Every rank but the source receives three numbers of 4 bytes."""
    messages = sum(call.name == "send" for calls in trace["calls"] for call in calls)
    least = (len(trace["calls"]) - 1) * 3 * 4
    return {
        "sent messages": messages,
        "bytes too few": max(0, least - sum(map(bytes_sent, trace["calls"]))),
        "steps one after another": steps(trace["calls"]),
    }


COPY = (
    "Every rank holds what it held before. `tensor = …` only gives a name to another tensor; which "
    "calls write into the one that was handed over?"
)
RETURNED = "Your function returned the result. The caller reads the tensor that it passed in."
SENDS, RECEIVES, DOUBLE = "away < have and away + have < n", "have <= away < 2 * have", "have *= 2"
tree_broadcast = ByMessages(
    right=tree,
    given=numbers_of,
    in_place="tensor",
    together=count_messages,
    cases=tuple((n, {"source": source}) for n, source in ((4, 0), (2, 1), (5, 3), (8, 6), (1, 0))),
    draw=lambda random: (n := random.choice((3, 6, 7)), {"source": random.randrange(n)}),
    free=("calls", "the result"),
    slips=(
        (Edit("n = worker.world_size", "n, source = worker.world_size, 0"), "Every rank has rank "
         "0's numbers. Which rank is the source?"),
        (Edit("while have < n:", "while 2 * have <= n:"), "Some ranks got nothing. Draw for 5 "
         "ranks which ranks have the numbers after each step. In the last step some ranks may have "
         "nothing to send."),
        (Edit("n = worker.world_size", "n, tensor = worker.world_size, tensor.clone()"), COPY),
        (Edit("n = worker.world_size", "n, tensor = worker.world_size, tensor.clone()",
              DOUBLE, DOUBLE + "\n    return tensor"), RETURNED),
        (Edit(DOUBLE, DOUBLE + "\n    if away == 0:\n        tensor.zero_()"), "The source's own "
         "numbers have changed: does the source receive a message?"),
        (Edit(SENDS, "away == 0", RECEIVES, "away == have", DOUBLE, "have += 1"), "The source "
         "sends every message itself. Which other rank has them after one step?"),
        (Edit(SENDS, "away == have - 1", RECEIVES, "away == have", DOUBLE, "have += 1",
              "worker.rank + have", "worker.rank + 1", "worker.rank - have", "worker.rank - 1"),
         "Each rank sends once and then rests. What could it do while the next rank sends?"),
    ),
    about={
        "bytes too few": UNSENT,
        "sent messages": "Some rank receives numbers that it has already.",
        "steps one after another": "In some step a rank has the numbers and sends nothing, while "
        "others lack them.",
    },
    failures=(
        (r"there is no rank", "The ranks are numbered from 0. What comes after the last, what "
         "before 0?", Edit("(worker.rank + have) % n", "worker.rank + have")),
    ),
    last="Draw which ranks have the numbers after each step. Does a rank pass them on before it "
    "has got them?",
)  # fmt: skip


# ring_all_reduce

BASE = 100  # two digits for each rank


def contribution(worker, numel: int) -> list[float]:
    """Position i holds (i+1) 100^rank: in a sum, each pair of digits is one rank's."""
    more = hidden.shifts(numel, 80, f"of rank {worker.rank} of {worker.world_size}")
    return [float((i + 1 + more[i]) * BASE**worker.rank) for i in range(numel)]


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


def count_ring(trace, numel):
    """A ring has one neighbour to send to, and 2 (n-1) chunks for it, of 8 bytes a number.

    All ranks together cannot send less: n-1 times the tensor for the sums, n-1 times to spread it.
    """
    calls, n = trace["calls"], len(trace["calls"])
    to = max(len({call.peer for call in mine if call.name == "send"}) for mine in calls)
    most = 2 * (n - 1) * -(-numel // n) * 8
    sent = list(map(bytes_sent, calls))
    return {
        "ranks that one rank sends to": max(1, to),
        "bytes more than a ring sends": max(0, max(sent) - most),
        "bytes too few": max(0, 2 * (n - 1) * numel * 8 - sum(sent)),
    }


FOLLOW = (
    "Follow one chunk around the ring: what does each rank add to it? Does each rank pass on the "
    "chunk with everything that was added so far?"
)
ROUND, CHUNKS = "range(2 * (n - 1))", "chunks = tensor.tensor_split(n)  # views"
CEIL = "size = -(-len(tensor) // n)\n    chunks = [tensor[k * size :][:size] for k in range(n)]"
TOO_EARLY = "[*range(n - 1), *range(n, 2 * n - 1)]"
KEEP = "coming.copy_(incoming)"
ring_all_reduce = ByMessages(
    right=ring,
    given=lambda worker, numel: (
        torch.tensor(contribution(worker, numel), dtype=torch.float64),
    ),
    in_place="tensor",
    together=count_ring,
    cases=tuple(
        (n, {"numel": numel}) for n, numel in ((4, 8), (4, 10), (2, 5), (4, 3), (3, 0), (1, 3))
    ),
    draw=lambda random: (random.choice((3, 5)), {"numel": random.randint(6, 19)}),
    free=("calls", "the result"),
    slips=(
        (Edit(ROUND, "range(n - 1)"), "Each rank has one finished chunk only: that is half of the "
         "way."),
        (Edit(ROUND, "range(max(0, 2 * n - 3))"), "On each rank one chunk was left out. How many "
         "chunks must arrive in each phase?"),
        (Edit("step < n - 1", "step < n - 2"), "One sum was left out. With how many other ranks "
         "must a chunk meet before it is finished?"),
        (Edit("step < n - 1", "step < n"), Edit("step < n - 1", "True"),
         Edit("step < n - 1", "True", CHUNKS, CEIL), "Some numbers are in the "
         "sum more than once. Is a chunk that comes in always to be added, in both phases?"),
        (Edit(ROUND, "range((n > 1) * (2 * n - 1))", "step < n - 1", "True"), "Some numbers came "
         "round to a rank that had added them already. How many steps does a chunk take to meet "
         "every rank once?"),
        (Edit(ROUND, TOO_EARLY), Edit(ROUND, TOO_EARLY, CHUNKS, CEIL), "The second phase sends a "
         "chunk that is not finished. Which chunk is, on this rank, after the first phase?"),
        (Edit("step < n - 1", "False"),
         Edit(CHUNKS, CHUNKS + "\n    own = tensor.clone().tensor_split(n)", "exchange(chunks[",
              "exchange(own["), FOLLOW),
        (Edit(CHUNKS, "chunks = tensor[: len(tensor) // n * n].tensor_split(n)"), "The last "
         "numbers were left out: the size is not divisible by the number of ranks."),
        (Edit("chunks = tensor", "tensor = tensor.clone()\n    chunks = tensor"), COPY),
        (Edit("chunks = tensor", "tensor = tensor.clone()\n    chunks = tensor", KEEP, KEEP
              + "\n    return tensor"), RETURNED),
        (Edit(CHUNKS, "going = tensor.clone()", ROUND, "range(n - 1)", "chunks[(rank - step - 1) "
              "% n]", "tensor", "chunks[(rank - step) % n]", "going", "coming += incoming",
              "coming += incoming\n            going = incoming"), "Whole buffers went round the "
         "ring. Which smaller piece would be enough?"),
        (Edit(ROUND, "range((n > 1) * (2 * n - 1))"), "More than a ring needs. After how many "
         "steps has a chunk met every rank, and after how many more does every rank have it?"),
    ),
    about={
        "bytes too few": UNSENT,
        "ranks that one rank sends to": "To how many other ranks does a rank of a ring send? In a "
        "ring all ranks send equally much, to one neighbour.",
        "bytes more than a ring sends": "How large is a chunk, and how many chunks does a rank "
        "send?",
    },
    last=FOLLOW,
)  # fmt: skip


# all_to_all


def part(source: int, target: int, numel: int) -> torch.Tensor:
    """Number k is `source target k`, as three digits."""
    more = torch.tensor(hidden.shifts(numel, 99, f"from {source} to {target}"))
    return 1000.0 * more + 100 * source + 10 * target + torch.arange(numel) % 10


def memory_of(answer, parts):
    """How many entries share memory with another entry, or with a part."""
    listed = answer if isinstance(answer, list | tuple) else ()
    places, own = (
        [x.data_ptr() for x in tensors if isinstance(x, torch.Tensor)]
        for tensors in (listed, parts)
    )
    return {
        "entries in the memory of other entries": len(places) - len(set(places)),
        "entries in the memory of `parts`": sum(place in own for place in places),
    }


def count_detours(trace, numel):
    """Each rank sends what is others', and no more."""
    parts = (len(trace["calls"]) - 1) * numel * 4
    sent = list(map(bytes_sent, trace["calls"]))
    return {
        "bytes too many": max(0, max(sent) - parts),
        "bytes too few": max(0, parts - min(sent)),
    }


def exchange_parts(worker, parts):
    n, rank = worker.world_size, worker.rank
    result = [torch.empty_like(part) for part in parts]
    result[rank].copy_(parts[rank])
    for step in range(1, n):
        to, source = (rank + step) % n, (rank - step) % n
        exchange(parts[to], to, result[source], source)
    return result


GOING = "exchange(parts[to]"
all_to_all = ByMessages(
    right=exchange_parts,
    given=lambda worker, numel: (
        [part(worker.rank, target, numel) for target in range(worker.world_size)],
    ),
    also=memory_of,
    together=count_detours,
    cases=tuple((n, {"numel": numel}) for n, numel in ((3, 2), (4, 1), (2, 50_000), (1, 2))),
    draw=lambda random: (random.choice((5, 6)), {"numel": random.randint(3, 19)}),
    free=("calls",),
    slips=(
        (Edit("return result", "return [one for one in result if one is not result[rank]]"), "One "
         "entry is missing: does some rank send no message to this rank?"),
        (Edit("    result[rank].copy_(parts[rank])", "    result[rank].zero_()"), "Only the entry "
         "from the rank itself is wrong. No message brings that entry."),
        (Edit("[torch.empty_like(part) for part in parts]", "[torch.empty_like(parts[0])] * n"),
         "Several entries are the same tensor: the last message is in all of them."),
        (Edit("return result", "return result[rank:] + result[:rank]"),
         Edit("return result", "return result[::-1]"), "The right parts, in another order: entry s "
         "must be rank s's part, whenever it arrives."),
        (Edit("exchange(parts[to], to, result[source], source)", "result[to].copy_(parts[to])"),
         "A rank still holds its own parts. Where did the other ranks' parts go?"),
        (Edit(GOING, "exchange(parts[source]"), Edit(GOING, "exchange(parts[rank]"), "From the "
         "right ranks, but meant for other ranks: which part goes where?"),
    ),
    about={
        "bytes too few": UNSENT,
        "entries in the memory of `parts`": "An entry is one of `parts` itself. If the caller "
        "writes into one of the two, the other changes, too.",
        "bytes too many": "Does a part pass through a rank that does not need it, or go to ranks "
        "that do not need it?",
    },
    last="Which part does rank s send to rank d, and into which entry does d receive it?",
)  # fmt: skip
