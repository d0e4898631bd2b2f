"""Exercise of week 5: one step of a pipeline on ranks, with the gradient of the global mean."""

import torch
import torch.distributed as dist
from torch import nn

from helpers.check import hidden
from helpers.check.oracle import NotRight, examine, is_number
from helpers.check.verdict import Verdict

CASES = [(2, (2, 2, 2)), (3, (3, 3, 1)), (2, (4,)), (1, (2, 1))]  # ranks, rows of micro-batches
WIDTH = 4
TOLERANCE = 1e-9


def pipeline_step(fn) -> Verdict:
    """Check `fn(worker, stage, micro_batches, targets)`: one process's gradients on every rank."""
    cases = [(ranks, {"rows": rows}) for ranks, rows in CASES]
    return examine("pipeline_step", fn, cases, run_step, judge_step, hint_failure)


def make(ranks: int, rows):
    """The stages of all ranks, the inputs and the targets: equal on every rank."""
    torch.manual_seed(hidden.seed(5))
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(ranks)]
    inputs = [torch.randn(count, WIDTH, dtype=torch.float64) for count in rows]
    targets = [torch.randn(count, WIDTH, dtype=torch.float64) for count in rows]
    return stages, inputs, targets


def run_step(worker, solve, rows):
    torch.set_num_threads(1)
    stages, inputs, targets = make(worker.world_size, rows)
    sums, losses = by_micro_batch(stages, inputs, targets, worker.rank)
    given = [x if not worker.rank else torch.full_like(x, torch.nan) for x in inputs]
    last = worker.rank == worker.world_size - 1
    wanted = [t if last else torch.full_like(t, torch.nan) for t in targets]
    stage = stages[worker.rank]
    answer = solve(worker, stage, given, wanted)
    dist.barrier()
    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        answer = answer.item()
    grads = [p.grad for p in stage.parameters()]
    whole = all(grad is not None for grad in grads)
    flat = torch.cat([grad.flatten() for grad in grads]) if whole else None
    return {
        "gradient": kind_of(flat, sums, rows),
        "loss": kind_of(number(answer), losses, rows, 1e-5) if last else "right",  # any dtype
        "returned": repr(answer)[:60],
    }


def number(answer) -> torch.Tensor | None:
    return torch.tensor([float(answer)], dtype=torch.float64) if is_number(answer) else None


def by_micro_batch(stages, inputs, targets, rank):
    """Gradients of this rank's stage, and losses: sums over the rows of each micro-batch."""
    model, sums, losses = nn.Sequential(*stages), [], []
    own = list(stages[rank].parameters())
    for x, target in zip(inputs, targets, strict=True):
        loss = ((model(x) - target) ** 2).sum()
        sums.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, own)]))
        losses.append(loss.detach()[None])
    return sums, losses


def kind_of(found, sums, rows, tolerance=TOLERANCE) -> str:
    """Which weights of the micro-batches give this? The first that fit."""
    if found is None:
        return "none"
    total, count = sum(rows), len(rows)
    weights = {
        "right": [1 / total] * count,
        "sum of means": [1 / each for each in rows],
        "mean of means": [1 / each / count for each in rows],
        "sum": [1.0] * count,
        "divided twice": [1 / total / count] * count,
        "last, of all": [0.0] * (count - 1) + [1 / total],
        "last, of its own": [0.0] * (count - 1) + [1 / rows[-1]],
        "last, sum": [0.0] * (count - 1) + [1.0],
        "first, of all": [1 / total] + [0.0] * (count - 1),
        "mean of numbers": [1 / total / WIDTH] * count,
        "mean of means of numbers": [1 / each / count / WIDTH for each in rows],
        "sum of means of numbers": [1 / each / WIDTH for each in rows],
    }
    for name, factors in weights.items():
        wanted = sum(factor * each for factor, each in zip(factors, sums, strict=True))
        if torch.allclose(found, wanted, rtol=0, atol=tolerance):
            return name
    return "other"


WORDS = {
    "none": "nothing",
    "sum": "the gradient of the sum over the rows",
    "other": "something else",
    "right": "the gradient of the mean over all rows",
}
HINTS = {
    "sum of means": "Means were added up: with m micro-batches the gradient is m times too large. "
    "By how many rows is the loss of the whole batch divided?",
    "mean of means": "A mean of means: a row of a small micro-batch counts more than a row of a "
    "large one. Divide every micro-batch's sum by the same number.",
    "sum": "Nothing was divided: the loss is a mean over all rows of all micro-batches.",
    "divided twice": "Divided twice: by the rows, and by the number of micro-batches.",
    "last, of all": "Only the last micro-batch's gradient is left. What clears `.grad` in between?",
    "first, of all": "Only the first micro-batch's gradient is here. Does every backward run?",
    "mean of numbers": "A row's loss is the sum of its squares; `F.mse_loss` divides by the width.",
}
HINTS["last, of its own"] = HINTS["last, sum"] = HINTS["last, of all"]
HINTS["mean of means of numbers"] = HINTS["sum of means of numbers"] = HINTS["mean of numbers"]


def judge_step(runs, rows):
    gradients = runs.column("gradient")
    listing = "\n".join(f"  rank {r}: {WORDS.get(k, k)}" for r, k in enumerate(gradients))
    finding = f"micro-batches of {', '.join(map(str, rows))} rows: `.grad` holds\n{listing}"
    if "none" in gradients:
        lacking = gradients.index("none")
        raise NotRight(
            finding,
            "A stage has no gradient before a backward has run on its own output. Does every "
            f"rank run one for each micro-batch? Rank {lacking} does not."
            if lacking
            else "No gradient came back to rank 0. What does rank 1 send, and which call gives "
            "rank 0 a backward from it?",
        )
    if set(gradients) != {"right"}:
        kind = next(k for k in gradients if k != "right")
        if gradients[0] == "right" and kind == "other":
            raise NotRight(
                finding,
                "The gradients that came back to rank 0 are right, but a later rank's own are not: "
                "its backward used other inputs. Does the next receive write over the input of an "
                "earlier micro-batch?",
            )
        if len(set(gradients)) > 1 and kind not in HINTS:
            raise NotRight(
                finding,
                "The ranks disagree. Which gradient does a rank send to the rank before it, and "
                "for which micro-batch?",
            )
        raise NotRight(
            finding,
            HINTS.get(kind, "Send the gradient of the stage's input, of the same micro-batch."),
        )
    if runs[-1]["loss"] != "right":
        raise NotRight(
            f"the gradients are right, but the last rank returned {runs[-1]['returned']}",
            "Return the mean over the rows of all micro-batches, as a number, on the last rank.",
        )


def hint_failure(finding: str) -> str:
    if "NoneType" in finding or "does not require grad" in finding:
        return (
            "A stage's input has no gradient. A received tensor needs a flag before the forward "
            "uses it, and the backward starts from the output of the same micro-batch."
        )
    if "a second time" in finding:
        return "Does each backward start from its own micro-batch's output?"
    if "grad can be implicitly created only for scalar" in finding:
        return "In the middle of the model, backward starts from the gradient that was received."
    if finding.startswith("with 1 rank:") and ("send" in finding or "recv" in finding):
        return (
            "A single rank is the first and also the last: it has no neighbour. What does it send?"
        )
    if "recv" in finding and "was waiting" in finding:
        return (
            "A rank waits for a message that its neighbour has not sent. Write down both ranks' "
            "sends and receives in order: does each receive have its send?"
        )
    return ""
