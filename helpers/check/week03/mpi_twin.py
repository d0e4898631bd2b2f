"""Compare what the ranks of `train_by_mpi` reported with one process: rows, updates, losses."""

import math

import numpy as np
import torch

from helpers.check.oracle import NotRight
from helpers.check.week03.mpi_rank import RATE, flat, loss_of, model_of, rows_of

SINGLE = 1e-5  # what float32 leaves of numbers of size 1
TOLERANCE = 1e-10  # float64; sums over ranks are added in another order


class Twin:
    """What one process does with the same batches, from rank 0's parameters.

    Attributes:
        batches: the rows of each step.
        states: the parameters before each step, and after the last.
        losses: the mean loss over the counted targets of each batch.
    """

    def __init__(self, work: str, pixels: torch.Tensor):
        self.model, self.summed = model_of(work, 0), loss_of(work, pixels)
        self.batches, self.losses = rows_of(work), []
        self.states = [flat(self.model)]
        for rows in self.batches:
            loss, count = self.summed(self.model, rows)
            self.losses.append(loss.item() / count)
            self.states.append(self.states[-1] - RATE * self.gradient(rows) / count)
            torch.nn.utils.vector_to_parameters(self.states[-1], self.model.parameters())

    def gradient(self, rows: torch.Tensor) -> torch.Tensor:
        """Of the summed loss, with the model as it is now."""
        loss, _ = self.summed(self.model, rows)
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, [*self.model.parameters()])]
        )

    def first_step(self, shards: list[list[int]]) -> tuple[list, list, list]:
        """Of each rank's rows in the first step: summed gradient, summed loss, count."""
        torch.nn.utils.vector_to_parameters(self.states[0], self.model.parameters())
        rows = [torch.tensor(shard, dtype=torch.long) for shard in shards]
        sums = [self.summed(self.model, shard) for shard in rows]
        gradients = [self.gradient(shard) for shard in rows]
        return gradients, [loss.item() for loss, _ in sums], [count for _, count in sums]


def judge(found: list[dict], twin: Twin):
    """Raise NotRight for the first thing that differs from one process."""
    steps = len(twin.batches)
    for rank, one in enumerate(found):
        if len(one["calls"]) != steps:
            raise NotRight(
                f"rank {rank} called loss_sum {len(one['calls'])} times in {steps} steps",
                "Call loss_sum once a step on every rank, even if the rank has no rows.",
            )
    for step, rows in enumerate(twin.batches):
        judge_rows([one["calls"][step]["rows"] for one in found], rows.tolist(), step)
    for rank, one in enumerate(found):
        if not same(one["calls"][0]["state"], twin.states[0]):
            raise NotRight(
                f"in the first step rank {rank} does not have rank 0's parameters",
                "The ranks begin with different parameters. Which collective gives every rank "
                "those of rank 0, and does it write into the model's own memory?",
            )
    judge_update(found, twin)
    judge_losses(found, twin)


def judge_rows(shards: list[list[int]], batch: list[int], step: int):
    every = [row for shard in shards for row in shard]
    if sorted(every) == sorted(batch):
        return
    listing = "\n".join(f"  rank {rank} takes rows {rows}" for rank, rows in enumerate(shards))
    finding = f"step {step + 1}, global batch {batch}\n{listing}"
    if len(shards) > 1 and all(sorted(shard) == sorted(batch) for shard in shards):
        raise NotRight(finding, "Every rank takes the whole batch. Which share is a rank's own?")
    if len(shards) > 1 and all(shard == shards[0] for shard in shards):
        raise NotRight(finding, "The ranks see the same rows. Where does the rank's number count?")
    if missing := sorted(set(batch) - set(every)):
        raise NotRight(finding, f"Rows {missing} are on no rank. The batch need not divide evenly.")
    raise NotRight(
        finding, "Some rows are on two ranks, or not of this batch. Each row counts once."
    )


def judge_update(found: list[dict], twin: Twin):
    """The first step's update on each rank, then the parameters after the last step."""
    shards = [one["calls"][0]["rows"] for one in found]
    gradients, _, counts = twin.first_step(shards)
    for rank, one in enumerate(found):
        after = torch.tensor(one["calls"][1]["state"], dtype=torch.float64)
        kind = kind_of((twin.states[0] - after) / RATE, gradients, counts, rank)
        if kind != "right":
            words, hint = WORDS[kind]
            finding = (
                f"step 1, rank {rank}; targets on the ranks: {counts}\n  the update is {words}"
            )
            raise NotRight(finding, hint)
    for rank, one in enumerate(found):
        if not same(one["state"], twin.states[-1]):
            raise NotRight(
                f"the first step is right, but after {len(twin.batches)} steps the parameters of "
                f"rank {rank} differ from one process's",
                "What does backward do with the gradients of the step before? Does the last batch "
                "count, and is every step divided by its own number of targets?",
            )


def kind_of(update: torch.Tensor, gradients, counts, rank: int) -> str:
    """Which common mistake gives this update? It is divided by the rate."""
    ranks, total = len(gradients), sum(counts)
    ones = [max(count, 1) for count in counts]
    whole = sum(gradients)
    means = sum(g / c for g, c in zip(gradients, ones, strict=True))
    candidates = {
        "right": whole / total,
        "nothing": torch.zeros_like(whole),
        "uphill": -whole / total,
        "summed": whole,
        "mean over ranks": whole / ranks,
        "times ranks": whole / total * ranks,
        "divided twice": whole / total / ranks,
        "mean of means": means / ranks,
        "sum of means": means,
        "own": gradients[rank] / ones[rank],
        "own over all": gradients[rank] / total,
        "by own count": whole / ones[rank],
    }
    for kind, value in candidates.items():
        size = max(1.0, value.abs().max().item())
        if torch.allclose(update, value, rtol=0, atol=TOLERANCE * size):
            return kind
    near = torch.allclose(update, candidates["right"], rtol=0, atol=SINGLE)
    return "single precision" if near else "other"


UNTOLD = "The ranks have not shared their gradients. Which call adds them up on every rank?"
ROUNDED = "Nearly right: the model is in float64. Does a float32 tensor carry numbers on the way?"
WORDS = {
    "single precision": ("the right one, to some seven digits", ROUNDED),
    "nothing": ("none: the parameters are the same", "Which line changes the model's parameters?"),
    "uphill": ("the right one with the wrong sign", "In which direction does the loss go down?"),
    "summed": (
        "the summed gradient",
        "The gradients are summed, not averaged. Over how many targets is the loss a mean?",
    ),
    "mean over ranks": (
        "the summed gradient, divided by the number of ranks",
        "Divide by targets, not by ranks: how many targets does the global batch count?",
    ),
    "times ranks": (
        "the right one, times the number of ranks",
        "Too large by the number of ranks. Is the sum over the ranks the mean already?",
    ),
    "divided twice": (
        "the right one, divided by the number of ranks",
        "Too small by the number of ranks. What have you divided by before?",
    ),
    "mean of means": (
        "the mean of the ranks' means",
        "A mean of means. Must a target count more because its rank has fewer targets?",
    ),
    "sum of means": (
        "the sum of the ranks' means",
        "Means are added up. Add up sums, and divide once by the targets of all ranks.",
    ),
    "own": ("of this rank's rows alone", UNTOLD),
    "own over all": ("of this rank's rows alone", UNTOLD),
    "by own count": (
        "the sum over all ranks, divided by this rank's own targets",
        "How many targets do all ranks count together? The ranks must share that number, too.",
    ),
    "other": (
        "none that this check knows",
        "Is every parameter's gradient in the buffer, and does each part get back to its own "
        "parameter? Print both sides on one rank.",
    ),
}


def judge_losses(found: list[dict], twin: Twin):
    steps = len(twin.batches)
    for rank, one in enumerate(found):
        losses = one["losses"]
        if not isinstance(losses, list) or len(losses) != steps:
            returned = f"{len(losses)} losses" if isinstance(losses, list) else losses
            raise NotRight(
                f"the training is right, but rank {rank} returned {returned}",
                f"Return a list with the loss of each of the {steps} steps, on every rank.",
            )
        if not all(isinstance(loss, float | int) for loss in losses):
            raise NotRight(
                f"the training is right, but rank {rank} returned a list of {losses[0]}",
                "Each loss is a Python number: .item(), or float(…).",
            )
    for rank, one in enumerate(found):
        pairs = zip(one["losses"], twin.losses, strict=True)
        if not all(math.isclose(a, b, rel_tol=1e-9) for a, b in pairs):
            raise NotRight(
                f"the training is right, but rank {rank} returned the losses "
                f"{np.round(one['losses'], 4).tolist()}; one process has "
                f"{np.round(twin.losses, 4).tolist()}",
                hint_losses(found, rank, twin),
            )


def hint_losses(found: list[dict], rank: int, twin: Twin) -> str:
    _, sums, counts = twin.first_step([one["calls"][0]["rows"] for one in found])
    loss, total, ranks = found[rank]["losses"][0], sum(counts), len(found)
    hints = [
        (sum(sums), "That is the summed loss. Divide it by the targets of the global batch."),
        (sum(sums) / ranks, "That is the summed loss over the number of ranks. Count targets."),
        (sums[rank] / max(counts[rank], 1), "That is the loss of this rank's rows alone."),
        (sums[rank] / total, "That is this rank's part of the loss. Add up the ranks' parts."),
    ]
    for value, hint in hints:
        if math.isclose(loss, value, rel_tol=1e-9):
            return hint
    if math.isclose(loss, twin.losses[0], rel_tol=SINGLE):
        return ROUNDED
    return "The loss is the mean over the targets of all ranks, before the update of the step."


def same(state: list[float], right: torch.Tensor) -> bool:
    found = torch.tensor(state, dtype=torch.float64)
    return found.shape == right.shape and torch.allclose(found, right, rtol=0, atol=TOLERANCE)
