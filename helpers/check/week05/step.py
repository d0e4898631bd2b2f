"""Exercise of week 5: one step of a pipeline on ranks, with the gradient of the global mean."""

import torch
import torch.distributed as dist
from torch import nn

from helpers.check import hidden
from helpers.check.answers import is_number, short
from helpers.check.exercise import Edit
from helpers.check.ranks import OnRanks, observed
from helpers.check.verdict import NotRight

WIDTH = 4


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
    last = worker.rank == worker.world_size - 1
    given = [x if not worker.rank else torch.full_like(x, torch.nan) for x in inputs]
    wanted = [t if last else torch.full_like(t, torch.nan) for t in targets]
    stage = stages[worker.rank]
    answer, seen = observed(solve, worker, stage, given, wanted)
    dist.barrier()
    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        answer = answer.item()
    grads = [p.grad for p in stage.parameters()]
    whole = all(grad is not None for grad in grads)
    return {
        "unwaited": seen["unwaited"],
        ".grad": torch.cat([grad.flatten() for grad in grads]) if whole else "no gradient",
        "returned": answer if answer is None or is_number(answer) else short(answer),
    }


def pipelined(worker, stage, micro_batches, targets):
    """GPipe: all forwards, then all backwards; each loss is divided by the rows of all."""
    rank, last = worker.rank, worker.world_size - 1
    rows, m = sum(len(batch) for batch in micro_batches), len(micro_batches)
    inputs, outputs, total = [], [], 0.0
    for batch in micro_batches:
        x = torch.empty_like(batch) if rank else batch
        if rank:
            dist.recv(x, src=rank - 1)
            x.requires_grad_()
        y = stage(x)
        if rank < last:
            dist.send(y.detach(), dst=rank + 1)
        inputs.append(x)
        outputs.append(y)
    for k in range(m):
        x, y = inputs[k], outputs[k]
        if rank == last:
            loss = ((y - targets[k]) ** 2).sum() / rows
            loss.backward()
            total += loss.item()
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, src=rank + 1)
            y.backward(gradient)
        if rank:
            dist.send(x.grad, dst=rank - 1)
    return total if rank == last else None


def judge_loss(trace, right, ranks, case):
    """The loss may have any dtype."""
    *others, found = trace["returned"]
    for rank, other in enumerate(others):
        if other is not None:
            raise NotRight(
                f"the gradients are right, but rank {rank} returned {other}",
                "Only the last rank knows the loss. What do the other ranks return?",
            )
    if not is_number(found) or abs(found - right["returned"][-1]) > 1e-5:
        raise NotRight(
            f"the gradients are right, but the last rank returned {found}",
            "Return the mean over the rows of all micro-batches, as a number, on the last rank.",
        )


def say_gradients(facet, found, right, ranks, rows) -> str:
    kinds = [
        "no gradient" if isinstance(own, str)
        else "the gradient of the mean over all rows" if torch.allclose(own, its, 0, 1e-9)
        else "something else"
        for own, its in zip(found, right, strict=True)
    ]  # fmt: skip
    lines = "".join(f"\n  rank {rank}: {kind}" for rank, kind in enumerate(kinds))
    return f"micro-batches of {', '.join(map(str, rows))} rows: `.grad` holds{lines}"


START = "inputs, outputs, total = [], [], 0.0"
LOSS = "((y - targets[k]) ** 2).sum() / rows"
pipeline_step = OnRanks(
    right=pipelined,
    run=run_step,
    close=1e-9,
    free=("returned",),
    rule=judge_loss,
    say=say_gradients,
    cases=tuple((ranks, {"rows": rows}) for ranks, rows in (
        (2, (2, 2, 2)), (3, (3, 3, 1)), (2, (4,)), (1, (2, 1))
    )),
    slips=(
        (Edit(LOSS, LOSS.replace("rows", "len(y)")), "Means were added up: with m micro-batches "
         "the gradient is m times too large. By how many rows is the loss of the whole batch "
         "divided?"),
        (Edit(LOSS, LOSS.replace("rows", "len(y) / m")), "A mean of means: a row of a small "
         "micro-batch counts more than a row of a large one. Divide every micro-batch's sum by the "
         "same number."),
        (Edit(LOSS, LOSS.replace(" / rows", "")), "Nothing was divided: the loss is a mean over "
         "all rows of all micro-batches."),
        (Edit(LOSS, LOSS.replace("rows", "m")), "Divided by the number of micro-batches. The loss "
         "is a mean over all rows."),
        (Edit(LOSS, LOSS + " / m"), "Divided twice: by the rows, and by the number of "
         "micro-batches."),
        (Edit(LOSS, "nn.functional.mse_loss(y, targets[k])"), Edit(LOSS, LOSS + " / y.shape[1]"),
         Edit(LOSS, "nn.functional.mse_loss(y, targets[k]) / m"),
         "A row's loss is the sum of its squares; `F.mse_loss` divides by the width."),
        (Edit("x, y = inputs", "stage.zero_grad(); x, y = inputs"), "Only the last micro-batch's "
         "gradient is left. What clears `.grad` in between?"),
        (Edit("dist.send(x.grad, dst=rank - 1)", "dist.send(x.grad, dst=rank - 1)\n        break"),
         "Only the first micro-batch's gradient is here. Does every backward run?"),
        (Edit("send(x.grad", "send(torch.ones_like(x)"), Edit("send(x.grad", "send(x.detach()"),
         Edit("send(x.grad", "send(-x.grad"),
         "The ranks disagree. Which gradient does a rank send to the rank before it, and for which "
         "micro-batch?"),
        (Edit("y.backward(gradient)", "pass", "send(x.grad", "send(torch.zeros_like(x)"),
         Edit("y.backward(gradient)", "y.backward(gradient) if rank else None"), "No gradient came "
         "back to rank 0. What does rank 1 send, and which call gives rank 0 a backward from it?"),
        (Edit(START, START + "; memory = torch.empty_like(max(micro_batches, key=len))",
              "torch.empty_like(batch) if rank else", "memory[: len(batch)].detach() if rank else"),
         "The gradients that came back to rank 0 are right, but a later rank's own are not: its "
         "backward used other inputs. Does the next receive write over the input of an earlier "
         "micro-batch?"),
        (Edit("total if rank == last", "None if rank == last"), "Return the mean over the rows of "
         "all micro-batches, as a number, on the last rank."),
        (Edit("total += loss.item()", "total = loss.item()"), "Add up the losses of all "
         "micro-batches: the last rank returns their sum."),
    ),
    failures=(
        ("a second time", "Does each backward start from its own micro-batch's output?",
         Edit("x, y = inputs[k], outputs[k]", "x, y = inputs[-1], outputs[-1]").of(pipelined)),
        ("implicitly created only for scalar", "In the middle of the model, backward starts from "
         "the gradient that was received.",
         Edit("y.backward(gradient)", "y.backward()").of(pipelined)),
        ("NoneType|does not require grad", "A stage's input has no gradient. A received tensor "
         "needs a flag before the forward uses it, and the backward starts from the output of the "
         "same micro-batch.", Edit("            x.requires_grad_()\n", "").of(pipelined)),
        ("(?s)^with 1 rank:.*(send|recv)", "A single rank is the first and also the last: it has "
         "no neighbour. What does it send?", None),
        ("(?s)recv.*was waiting|was waiting.*recv", "A rank waits for a message that its neighbour "
         "has not sent. Write down both ranks' sends and receives in order: does each receive have "
         "its send?", Edit(START, START + "; rank < last and "
                           "dist.recv(torch.empty_like(micro_batches[0]), src=rank + 1)"
                           ).of(pipelined)),
    ),
    last="Send the gradient of the stage's input, of the same micro-batch.",
)  # fmt: skip
