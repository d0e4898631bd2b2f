"""Exercise of week 1, fourth part: ranks with different numbers of steps, and no hang."""

import torch

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine
from helpers.check.verdict import Verdict

# How many gradients each rank has. In a sum, each decimal digit belongs to one rank.
COUNTS = ((3, 3, 2, 2), (0, 2), (1, 0, 4), (2,), (0, 0))
SIZE = 3  # numbers of a gradient


def sum_uneven(fn) -> Verdict:
    """Check `fn(worker, gradients, size) -> list`: each step's sum over the ranks, on every rank.

    The ranks have different numbers of gradients. A rank that has none left counts as zero.
    """
    cases = [(len(counts), {"counts": counts}) for counts in COUNTS]
    return examine("sum_uneven", fn, cases, run_uneven, judge_uneven, hint_failure)


def value(rank: int, step: int) -> float:
    return float((step + 1 + hidden.shift(5)) * 10**rank)


def sums(counts) -> list[float]:
    ranks = range(len(counts))
    return [sum(value(r, step) for r in ranks if step < counts[r]) for step in range(max(counts))]


def run_uneven(worker, solve, counts):
    own = [torch.full((SIZE,), value(worker.rank, k)) for k in range(counts[worker.rank])]
    gradients = [gradient.clone() for gradient in own]
    answer = solve(worker, gradients, SIZE)
    changed = len(gradients) != len(own) or not all(map(torch.equal, gradients, own))
    if not isinstance(answer, list | tuple):
        return {"kind": type(answer).__name__, "entries": None, "changed": changed}
    return {"entries": [plain(entry) for entry in answer], "changed": changed}


def plain(entry) -> float | str:
    """The number that a right tensor is full of; in words what another one is."""
    if not isinstance(entry, torch.Tensor):
        return f"a {type(entry).__name__}"
    if entry.shape != (SIZE,):
        return f"a tensor of shape {tuple(entry.shape)}"
    return entry[0].item() if (entry == entry[0]).all() else str(entry.tolist())


def judge_uneven(runs, counts):
    right = sums(counts)
    for rank, run in enumerate(runs):
        if run["entries"] is None:
            raise NotRight(
                f"rank {rank} returned {run['kind']}",
                "Return a list with one tensor for each step.",
            )
        if run["changed"]:
            raise NotRight(
                f"rank {rank}'s gradients have changed",
                "The gradients belong to the caller. A collective writes into its tensor: "
                "give it a tensor of your own.",
            )
    if all(run["entries"] == right for run in runs):
        return
    listing = "\n".join(
        f"  rank {rank} has {counts[rank]} gradients, returned {run['entries']}"
        for rank, run in enumerate(runs)
    )
    finding = f"rank r's gradient of step k is full of (k+1)·10^r; the sums are {right}\n{listing}"
    raise NotRight(finding, hint_uneven([run["entries"] for run in runs], counts, right))


def hint_uneven(found, counts, right) -> str:
    """Which common mistake gives these lists?"""
    ranks, rank = range(len(counts)), next(r for r, row in enumerate(found) if row != right)
    row = found[rank]
    if any(isinstance(entry, str) for entry in row):
        return f"Each entry is one tensor of {SIZE} numbers."
    if len({len(other) for other in found}) > 1:
        return "The ranks returned lists of different lengths. How many steps has the longest list?"
    if len(row) == min(counts) < len(right):
        return "You stopped at the shortest list, and gradients are lost. Which length do you need?"
    if len(row) == sum(counts) > len(right):
        return "Those are as many steps as gradients. The ranks make one step at the same time."
    if len(row) != len(right):
        return f"There are {len(right)} steps, and the list has {len(row)} entries."
    if any(found[r] != found[0] for r in ranks):
        return "The ranks returned different sums. Which collective gives every rank the result?"
    if row == [total / len(counts) for total in right]:
        return "That is the mean over the ranks. The sum is asked for."
    if all(k < counts[r] for r in ranks for k, total in enumerate(row) if total == right[k]):
        return (
            "The steps that all ranks have are right. What does a rank contribute when it has no "
            "gradient left?"
        )
    return "Which ranks are in the sum? A digit of it is one rank's, and rank 0's is the last."


def hint_failure(finding: str) -> str:
    if "no sign of life" in finding or "SIGABRT" in finding:
        return (
            "Some ranks make more calls than others. How can every rank know, before the loop, "
            "how many calls the longest list needs?"
        )
    if "IndexError" in finding:
        return "This rank has no gradient for that step. What can it contribute to the sum?"
    return ""
