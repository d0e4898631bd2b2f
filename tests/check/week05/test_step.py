"""A step of a pipeline on ranks: each mistake in the gradients gets its own hint."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from helpers import check
from helpers.check.week05.step import hint_failure, make
from notebooks.solutions import week05
from tests.check.asked import drawn_anew


@pytest.mark.usefixtures("shared_ranks")
def test_the_solution_passes():
    verdict = check.pipeline_step(week05.pipeline_step)
    assert verdict, verdict


def step(
    *,
    loss=lambda y, t, rows, m: ((y - t) ** 2).sum() / rows,
    flag=True,
    clear=False,
    sends=lambda x, micro, kept: x.grad,
    backward=lambda y, gradient: y.backward(gradient),
    answer=lambda total: total,
    use=lambda outputs, micro: outputs[micro],
):
    """The solution, with one part of it changed."""

    def solve(worker, stage, micro_batches, targets):
        rank, last = worker.rank, worker.world_size - 1
        rows, m, inputs, outputs, total = sum(map(len, micro_batches)), len(targets), [], [], 0.0
        for batch in micro_batches:
            x = batch if rank == 0 else torch.empty_like(batch)
            if rank:
                dist.recv(x, src=rank - 1)
                x.requires_grad_(flag)
            outputs.append(stage(x))
            inputs.append(x)
            if rank < last:
                dist.send(outputs[-1].detach(), dst=rank + 1)
        for micro, x in enumerate(inputs):
            y = use(outputs, micro)
            if clear:
                stage.zero_grad()
            if rank == last:
                found = loss(y, targets[micro], rows, m)
                found.backward()
                total += found.item()
            else:
                gradient = torch.empty_like(outputs[micro])
                dist.recv(gradient, src=rank + 1)
                backward(y, gradient)
            if rank:
                dist.send(sends(x, micro, inputs), dst=rank - 1)
        return answer(total) if rank == last else None

    return solve


def the_last_alone(worker, stage, micro_batches, targets):
    """Only the last rank computes gradients."""
    rank, last = worker.rank, worker.world_size - 1
    rows, total = sum(map(len, micro_batches)), 0.0
    for batch, target in zip(micro_batches, targets, strict=True):
        x = batch if rank == 0 else torch.empty_like(batch)
        if rank:
            dist.recv(x, src=rank - 1)
        y = stage(x)
        if rank < last:
            dist.send(y.detach(), dst=rank + 1)
        else:
            loss = ((y - target) ** 2).sum() / rows
            loss.backward()
            total += loss.item()
    return total


def one_buffer(worker, stage, micro_batches, targets):
    """Every micro-batch is received into the same memory."""
    rank, last = worker.rank, worker.world_size - 1
    memory, kept = torch.empty_like(micro_batches[0]), []
    for batch in micro_batches:
        x = memory[: len(batch)].detach() if rank else batch
        if rank:
            dist.recv(x, src=rank - 1)
            x.requires_grad_()
        y = stage(x)
        if rank < last:
            dist.send(y.detach(), dst=rank + 1)
        kept.append((x, y))
    for (x, y), target in zip(kept, targets, strict=True):
        gradient = torch.empty_like(y)
        if rank == last:
            y, gradient = ((y - target) ** 2).sum() / sum(map(len, targets)), None
        else:
            dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
        if rank:
            dist.send(x.grad, dst=rank - 1)


def no_backward_in_the_middle(worker, stage, micro_batches, targets):
    """Ranks before the last receive their gradients, and do nothing with them."""
    return step(backward=lambda y, gradient: None, sends=lambda x, *_: torch.zeros_like(x))(
        worker, stage, micro_batches, targets
    )


def off_in_the_eighth_digit(worker, stage, micro_batches, targets):
    answer = week05.pipeline_step(worker, stage, micro_batches, targets)
    stage[0].bias.grad += 1e-8
    return answer


def stub(worker, stage, micro_batches, targets):
    raise NotImplementedError


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (step(loss=lambda y, t, rows, m: ((y - t) ** 2).sum() / len(y)), "m times too large"),
        (step(loss=lambda y, t, rows, m: ((y - t) ** 2).sum() / len(y) / m), "A mean of means"),
        (step(loss=lambda y, t, rows, m: ((y - t) ** 2).sum()), "Nothing was divided"),
        (step(loss=lambda y, t, rows, m: ((y - t) ** 2).sum() / rows / m), "Divided twice"),
        (step(loss=lambda y, t, rows, m: mse_loss(y, t)), "divides by the width"),
        (step(loss=lambda y, t, rows, m: mse_loss(y, t) / m), "divides by the width"),
        (step(clear=True), "Only the last micro-batch"),
        (step(flag=False), "needs a flag"),
        (step(sends=lambda x, micro, kept: torch.ones_like(x)), "The ranks disagree"),
        (step(sends=lambda x, micro, kept: x.detach()), "The ranks disagree"),
        (step(use=lambda outputs, micro: outputs[-1]), "output of the same micro-batch"),
        (
            step(use=lambda outputs, _: outputs[-1], sends=lambda x, _, kept: kept[-1].grad),
            "its own micro-batch's output",
        ),
        (step(backward=lambda y, gradient: y.backward()), "starts from the gradient"),
        (step(answer=lambda total: None), "on the last rank"),
        (step(answer=lambda total: 2 * total), "on the last rank"),
        (step(answer=lambda total: 1.001 * total), "on the last rank"),
        (off_in_the_eighth_digit, "of the same micro-batch"),
        (step(sends=lambda x, *_: -x.grad), "The ranks disagree"),
        (one_buffer, "write over the input of an earlier micro-batch"),
        (no_backward_in_the_middle, "No gradient came back to rank 0"),
        (the_last_alone, "No gradient came back to rank 0"),
    ],
)
def test_pipeline_step(mistake, hint):
    verdict = check.pipeline_step(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


@pytest.mark.usefixtures("shared_ranks")
def test_the_stub_is_told_apart():
    assert check.pipeline_step(stub).status == "not written yet"


@pytest.mark.usefixtures("shared_ranks")
def test_inputs_are_on_the_first_rank_alone_and_targets_on_the_last():
    """The other ranks get tensors of these shapes, and no numbers: those have to be sent."""

    def solve(worker, stage, micro_batches, targets):
        first, last = worker.rank == 0, worker.rank == worker.world_size - 1
        assert all(x.isnan().all() != first for x in micro_batches)
        assert all(target.isnan().all() != last for target in targets)
        return week05.pipeline_step(worker, stage, micro_batches, targets)

    verdict = check.pipeline_step(solve)
    assert verdict, verdict


@pytest.mark.usefixtures("shared_ranks")
def test_any_order_and_a_tensor_pass():
    assert check.pipeline_step(step(answer=torch.tensor))


@pytest.mark.parametrize("doing", ["waiting in send, line 7", "raised ValueError in dist.recv"])
def test_one_rank_has_no_neighbour(doing):
    """The case with one rank is the last one; a hang would take the whole timeout here."""
    assert "the first and also the last" in hint_failure(f"with 1 rank: rank 0 was {doing}")


def test_a_deadlock_names_the_messages(monkeypatch):
    """Every rank first waits for its gradient."""

    def solve(worker, stage, micro_batches, targets):
        if worker.rank < worker.world_size - 1:
            dist.recv(torch.empty_like(micro_batches[0]), src=worker.rank + 1)
        return week05.pipeline_step(worker, stage, micro_batches, targets)

    monkeypatch.setattr("helpers.check.oracle.TIMEOUT", 2.0)
    verdict = check.pipeline_step(solve)
    assert verdict.status == "wrong", verdict
    assert "does each receive have its send" in verdict.hint, verdict


def test_grading_draws_other_inputs():
    def made():
        (stage,), *tensors = make(1, (2,))
        return [*stage.parameters()], *tensors

    assert drawn_anew(made)
