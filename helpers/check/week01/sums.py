"""Exercises of week 1 on ranks: a mean, sums of lists of different lengths, bytes on the wire."""

from functools import cache

import torch
import torch.distributed as dist

from helpers.check import elsewhere, hidden
from helpers.check.answers import plain, short
from helpers.check.exercise import Edit, Number
from helpers.check.ranks import OnRanks, observed
from helpers.comm.collectives import ring_reduce_scatter
from helpers.comm.ledger import store_ports
from helpers.measure.sockets import SentBytes

# global_mean

SHARDS = (  # each rank's values: lists of different lengths on purpose, one of them empty
    [[4.0]],
    [[1.0, 2.0, 3.0], [10.0]],
    [[5.0, 7.0], [], [1.0, -2.0, 3.0, 8.0]],
    [[2.0], [4.0, 4.0], [6.0, 6.0, 6.0], [1.0, 1.0, 1.0, 1.0, 1.0]],
)


def drawn_shards(random) -> list[list[float]]:
    return [[float(random.randint(-9, 9)) for _ in range(count)] for count in (2, 0, 5)]


def shards_by_rank():
    every = (*SHARDS, *hidden.more(drawn_shards, 2))
    return [(len(shards), {"shards": shards}) for shards in every]


def run_mean(worker, solve, shards):
    values = torch.tensor(shards[worker.rank], dtype=torch.float64)
    answer, seen = observed(solve, worker, values, names=("its values",))
    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        answer = answer.item()
    return {"changed": seen["changed"], "the mean": plain(answer)}


def say_mean(facet, found, right, ranks, shards) -> str:
    return "\n".join(
        f"  rank {rank} holds {shard}, returned {short(found[rank])}"
        for rank, shard in enumerate(shards) if facet == "the mean"
    )  # fmt: skip


def mean(worker, values):
    count = torch.tensor(float(len(values)), dtype=torch.float64)
    sums = torch.stack([values.sum(), count])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


REDUCE = "dist.all_reduce(sums)"
DIVIDE = "(sums[0] / sums[1]).item()"
NO_VALUES = "A rank without values has no mean of its own: 0/0. What can it contribute instead?"
OF_MEANS = (
    "That is the mean of the ranks' means. Should a rank with one value count as much as a rank "
    "with three values?"
)
OWN_MEAN = "Each rank returned the mean of its own values. Which numbers must the ranks exchange?"
global_mean = OnRanks(
    name="global_mean",
    right=mean,
    run=run_mean,
    cases=shards_by_rank,
    say=say_mean,
    close=1e-5,
    slips=(
        (Edit(REDUCE, "dist.reduce(sums, 0)"), "Rank 0 is right, other ranks are not: which "
         "collective gives *every* rank the result?"),
        (Edit(DIVIDE, "sums[0].item()"), "That is the sum of all values. How many values do all "
         "ranks hold together?"),
        (Edit(DIVIDE, "(sums[0] / worker.world_size).item()"), "That is the sum divided by the "
         "number of ranks. Ranks are not values."),
        (Edit("values.sum()", "values.mean()", DIVIDE, "(sums[0] / worker.world_size).item()"),
         NO_VALUES),
        (Edit("values.sum()", "values.mean().nan_to_num()", DIVIDE,
              "(sums[0] / worker.world_size).item()"), OF_MEANS),
        (Edit("values.sum()", "values.mean().nan_to_num()", "float(len(values))",
              "float(len(values) > 0)"), OF_MEANS),
        (Edit(REDUCE, "pass"), OWN_MEAN),
        (Edit(REDUCE, "sums[1] += sums[1] == 0"), OWN_MEAN),
        (Edit(DIVIDE, "(sums[0] / len(values)).item() if len(values) else 0.0"), "The sum is over "
         "all ranks, and the count is this rank's. How many values do all ranks hold together?"),
        (Edit(REDUCE, REDUCE + "\n    dist.all_reduce(values) if len({*map(len, [values])}) > 1 "
              "else values.mul_(2)"), "A collective writes into the tensor that it is given. Give "
         "it one of your own."),
        (Edit(REDUCE, REDUCE + "\n    sums /= worker.world_size\n    sums[1] = 1"), "That is the "
         "sum divided by the number of ranks. Ranks are not values."),
        (Edit("return " + DIVIDE, "(sums[0] / sums[1]).item()"), "Return the mean, as a number."),
    ),
    last="Which two numbers must every rank know before the division?",
)  # fmt: skip


# sum_uneven

COUNTS = ((3, 3, 2, 2), (0, 2), (1, 0, 4), (2,), (0, 0))  # gradients of each rank
SIZE = 3  # numbers of a gradient


def value(rank: int, step: int) -> float:
    """In a sum, each decimal digit belongs to one rank."""
    return float((step + 1 + hidden.shift(5)) * 10**rank)


def run_uneven(worker, solve, counts):
    own = [torch.full((SIZE,), value(worker.rank, k)) for k in range(counts[worker.rank])]
    gradients = [gradient.clone() for gradient in own]
    answer, seen = observed(solve, worker, gradients, SIZE)
    changed = len(gradients) != len(own) or not all(map(torch.equal, gradients, own))
    listed = isinstance(answer, list | tuple)
    return {
        "form": "a list of tensors" if listed else short(plain(answer)),
        "unwaited": seen["unwaited"],
        "changed": ("its gradients",) * changed,
        "steps": len(answer) if listed else None,
        "the sums": plain(answer) if listed else None,
    }


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


def own_length(worker, gradients, size):
    for gradient in gradients:
        dist.all_reduce(gradient.clone())
    return gradients


def no_zeros(worker, gradients, size):
    steps = torch.tensor(len(gradients))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    return [gradients[step] for step in range(int(steps))]


IN_PLACE = (
    "The gradients belong to the caller. A collective writes into its tensor: give it a tensor of "
    "your own."
)
sum_uneven = OnRanks(
    name="sum_uneven",
    right=uneven,
    run=run_uneven,
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
        (Edit("        dist.all_reduce(total)", "        dist.reduce(total, 0)"), "The ranks "
         "returned different sums. Which collective gives every rank the result?"),
        (Edit("        dist.all_reduce(total)", "        pass"), "The ranks returned different "
         "sums. Which collective gives every rank the result?"),
        (Edit("total += gradients[step]", "total = gradients[step]"), IN_PLACE),
        (Edit("total += gradients[step]", "total += gradients[step]\n        elif gradients:\n"
              "            total += gradients[-1]"), "A rank with no gradient left counts as zero. "
         "What does it contribute here?"),
        (Edit("if step < len(gradients)", "if step < len(gradients) and len(gradients) == steps"),
         "The steps that only some ranks have lack gradients. Which ranks are in each sum?"),
        (Edit("sums.append(total)", "sums.append(total.sum())"), "Each entry is one tensor of the "
         "gradient's size."),
        (Edit("return sums", "return torch.stack(sums) if sums else sums"), "Return a list with "
         "one tensor for each step."),
        (Edit("return sums", "return sum(sums)"), "Return a list with one tensor for each step."),
    ),
    failures=(
        (r"no sign of life|SIGABRT", "Some ranks make more calls than others. How can every rank "
         "know, before the loop, how many calls the longest list needs?", own_length),
        (r"IndexError", "This rank has no gradient for that step. What can it contribute to the "
         "sum?", no_zeros),
    ),
    last="Which ranks are in the sum? A digit of it is one rank's, and rank 0's is the last.",
)  # fmt: skip


# bytes_on_the_wire

BUFFER = 1_200_000  # bytes: a multiple of 4 bytes × 2, 3 and 4 ranks; headers are small beside it
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")


def wire(collective, ranks, size):
    """The least bytes that one rank can send; for a broadcast, those of all ranks together."""
    phase = (ranks - 1) * size / ranks
    return {"all_reduce": 2 * phase, "broadcast": (ranks - 1) * size}.get(collective, phase)


def every_collective():
    many = 64 + hidden.shift(60)
    asked = [(n, BUFFER) for n in (3, 4, 2, 1)] + [(many, many * 15_625_000)]
    return [(f"{collective} of {size:,} bytes on {n} rank{'s' * (n > 1)}", (collective, n, size))
            for n, size in asked for collective in COLLECTIVES]  # fmt: skip


@cache
def kernel_counts(ranks: int) -> dict[str, int | None]:
    """The bytes that ranks really send, as the operating system counts them; None: it does not."""
    runs = elsewhere.here(count_sent, ranks, None, {})
    return {
        collective: None if None in (sent := runs.column(collective))
        else sum(sent) if collective == "broadcast" else max(sent)
        for collective in COLLECTIVES
    }  # fmt: skip


def count_sent(worker, solve) -> dict[str, int | None]:
    found = {}
    for collective in COLLECTIVES:
        buffer, part = torch.zeros(BUFFER // 4), torch.zeros(BUFFER // 4 // worker.world_size)
        dist.barrier()
        count = SentBytes(without_ports=store_ports())
        do(collective, buffer, part)
        dist.barrier()  # all that was sent has been received: it can be counted
        found[collective] = count.read()
    return found


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


def say_bytes(found, right, collective, ranks, size) -> str:
    who = "all ranks together" if collective == "broadcast" else "one rank"
    counted = kernel_counts(ranks)[collective] if size == BUFFER else None
    told = f"the formula says {right:,.0f}"
    if counted is not None:
        told = f"{who} sent {counted:,} (the operating system counted, headers included)"
    return f"you said {found:,.10g} bytes; {told}"


LONE = "A single rank has no other rank to send to."
PHASES = ("all_gather", "reduce_scatter", "all_to_all")
bytes_on_the_wire = Number(
    name="bytes_on_the_wire",
    right=wire,
    unit="bytes",
    cases=every_collective,
    say=say_bytes,
    close=2e-9,
    slips=(
        (lambda b, g: b * g.ranks / max(1, g.ranks - 1), "One too many: how many *other* ranks are "
         "there, or how many steps does it take?"),
        (lambda b, g: g.size * (2 if g.collective == "all_reduce" else 1), "One too many: how many "
         "*other* ranks are there, or how many steps does it take?"),
        (lambda b, g: b / 4, "Return bytes. Did you count numbers of four bytes?"),
        (lambda b, g: b / (2 if g.collective == "all_reduce" else 1), "That is one phase of the "
         "ring. How many phases does a ring have?"),
        (lambda b, g: wire("all_gather", g.ranks, g.size), "That is one phase of the ring. How "
         "many phases does a ring have?"),
        (lambda b, g: b * (2 if g.collective in PHASES else 1), "That is as much as a whole "
         "all-reduce sends. Which part of an all-reduce is this?"),
        (lambda b, g: b * g.ranks, "`size` is the whole buffer. Does one rank send all of it, or a "
         "part of it?"),
        (lambda b, g: b * (1 if g.collective == "broadcast" else g.ranks), "`size` is the whole "
         "buffer. Does one rank send all of it, or a part of it?"),
        (lambda b, g: b if g.collective != "broadcast" else g.size * (g.ranks > 1), "For a "
         "broadcast, all ranks together are asked for: how many ranks get the buffer?"),
        (lambda b, g: b / (g.ranks if g.collective == "broadcast" else 1), "For a broadcast, all "
         "ranks together are asked for: how many ranks get the buffer?"),
        (lambda b, g: b + g.size * (g.collective == "broadcast"), "The source has the buffer "
         "already: how many ranks lack it?"),
        (lambda b, g: b / g.ranks, "That is a step of one chunk. How many steps does it take?"),
        (lambda b, g: b or g.size, LONE),
        (lambda b, g: 8 * b, "Return bytes, not bits."),
    ),
    last="Draw it for 2 ranks, then for 3: which rank sends which part, and how often?",
)  # fmt: skip
