"""Exercises of week 1: ranks and collectives."""

import math

import torch

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine
from helpers.check.verdict import Verdict

# The values of each rank: lists of different lengths on purpose, one of them empty.
SHARDS = (
    [[4.0]],
    [[1.0, 2.0, 3.0], [10.0]],
    [[5.0, 7.0], [], [1.0, -2.0, 3.0, 8.0]],
    [[2.0], [4.0, 4.0], [6.0, 6.0, 6.0], [1.0, 1.0, 1.0, 1.0, 1.0]],
)


def global_mean(fn) -> Verdict:
    """Check `fn(worker, values) -> float`: the mean of all values of all ranks, on every rank."""
    cases = [(len(shards), {"shards": shards}) for shards in (*SHARDS, *hidden.more(drawn, 2))]
    return examine("global_mean", fn, cases, run_global_mean, judge_global_mean)


def drawn(random) -> list[list[float]]:
    return [[float(random.randint(-9, 9)) for _ in range(count)] for count in (2, 0, 5)]


def run_global_mean(worker, solve, shards):
    values = torch.tensor(shards[worker.rank], dtype=torch.float64)
    answer = solve(worker, values)
    if isinstance(answer, torch.Tensor):
        answer = answer.item() if answer.numel() == 1 else tuple(answer.shape)
    return {"answer": answer, "values": values.tolist()}


def judge_global_mean(runs, shards):
    every = [value for shard in shards for value in shard]
    right = math.fsum(every) / len(every)
    answers = runs.column("answer")
    if all(answer is None for answer in answers):
        raise NotRight("every rank returned None", "Return the mean, as a number.")
    for rank, (shard, after) in enumerate(zip(shards, runs.column("values"), strict=True)):
        if after != shard:
            raise NotRight(
                f"rank {rank} was given {shard} and holds {after} afterwards",
                "A collective writes into the tensor that it is given. Give it one of your own.",
            )
    for rank, answer in enumerate(answers):
        if not isinstance(answer, int | float):
            raise NotRight(f"rank {rank} returned {answer!r}", "Return one number.")
    if all(math.isclose(answer, right, rel_tol=1e-5) for answer in answers):
        return
    listing = "\n".join(
        f"  rank {rank} holds {shard}, returned {answer:g}"
        for rank, (shard, answer) in enumerate(zip(shards, answers, strict=True))
    )
    finding = f"the mean of all {len(every)} values is {right:g}\n{listing}"
    raise NotRight(finding, hint_global_mean(answers, shards, right))


def hint_global_mean(answers, shards, right) -> str:
    """Which common mistake gives these answers?"""

    def near(value):
        return [math.isclose(answer, value, rel_tol=1e-5) for answer in answers]

    ranks, total = len(shards), math.fsum(value for shard in shards for value in shard)
    means = [math.fsum(shard) / len(shard) if shard else math.nan for shard in shards]
    zeroed = [0.0 if math.isnan(mean) else mean for mean in means]
    if near(right)[0] and not all(near(right)):
        return (
            "Rank 0 is right, other ranks are not: which collective gives *every* rank the result?"
        )
    if all(near(total)):
        return "That is the sum of all values. How many values do all ranks hold together?"
    if all(near(total / ranks)):
        return "That is the sum divided by the number of ranks. Ranks are not values."
    if any(math.isnan(answer) for answer in answers):
        return "A rank without values has no mean of its own: 0/0. What can it contribute instead?"
    if all(near(math.fsum(zeroed) / ranks)):
        return (
            "That is the mean of the ranks' means. "
            "Should a rank with one value count as much as a rank with three values?"
        )
    if all(math.isclose(a, m, rel_tol=1e-5) for a, m in zip(answers, zeroed, strict=True)):
        return (
            "Each rank returned the mean of its own values. Which numbers must the ranks exchange?"
        )
    if any(abs(answer) > 1e9 or math.isinf(answer) for answer in answers):
        return "Did you divide by a number that was never set?"
    return "Which two numbers must every rank know before the division?"
