"""Several micro-batches on ranks: the solution passes, each mistake gets its own hint."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week03 import accumulate
from helpers.models.gpt import loss_sum
from notebooks.solutions import week03
from tests.check.alone import found_alone
from tests.check.told import told


@pytest.mark.usefixtures("shared_ranks")
def test_the_solution_passes():
    verdict = check.accumulate(week03.accumulate)
    assert verdict, verdict


def steps(*, send="last", weight="tokens", scale=True, zero="first", step="last"):
    """The solution, with one part of it changed."""

    def solve(worker, ddp, optimizer, micro_batches):
        if zero == "first":
            optimizer.zero_grad()
        tokens = torch.tensor(sum(batch.counted() for batch in micro_batches))
        own = max(int(tokens), 1)
        dist.all_reduce(tokens)
        micros = len(micro_batches)
        for left, batch in zip(reversed(range(micros)), micro_batches, strict=True):
            if zero == "each":
                optimizer.zero_grad()
            sends = {"last": not left, "first": left == micros - 1, "never": False}[send]
            with nullcontext() if sends else ddp.no_sync():
                loss, count = loss_sum(ddp(batch.tokens), batch.targets)
                if weight == "tokens":
                    loss = loss / tokens
                elif weight == "means":
                    loss = loss / count.clamp(min=1) / micros / worker.world_size
                elif weight == "own":
                    loss = loss / own / worker.world_size
                elif weight == "0/0":
                    loss = loss / count
                (loss * worker.world_size * scale if scale else loss).backward()
        if step == "too early":
            optimizer.step()
        if send != "never":
            ddp.synchronize()
        if step == "last" or (step == "on rank 0" and worker.rank == 0):
            optimizer.step()

    return solve


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (steps(send="never"), "sent each other nothing"),
        (steps(send="first"), "that is under way"),
        (steps(weight="means"), "mean of means"),
        (steps(weight="own"), "mean of means"),
        (steps(weight="0/0"), "Means were added up"),
        (steps(weight="sum"), "Too large"),
        (steps(scale=False), "Too small"),
        (steps(scale=1 + 1e-6), "divided once"),  # wrong by a millionth
        (steps(zero="each"), "taken it away"),
        (steps(zero="never"), "nothing in `.grad`"),
        (steps(step="too early"), "before the gradients were back"),
        (steps(step="never"), "makes the step"),
        (steps(step="on rank 0"), "makes the step"),
    ],
)
def test_accumulate(mistake, hint):
    told(check.accumulate(mistake), hint)


def test_accumulate_that_sends_every_micro_batch():
    """By hand: sums that are sent each time and put right afterwards."""

    def solve(worker, ddp, optimizer, micro_batches):
        parameters = list(ddp.module.parameters())
        tokens = torch.tensor(sum(batch.counted() for batch in micro_batches))
        dist.all_reduce(tokens)
        total = [torch.zeros_like(p) for p in parameters]
        for batch in micro_batches:
            optimizer.zero_grad()
            loss, _ = loss_sum(ddp(batch.tokens), batch.targets)
            (loss * worker.world_size / tokens).backward()
            ddp.synchronize()
            for kept, p in zip(total, parameters, strict=True):
                kept += p.grad
        for kept, p in zip(total, parameters, strict=True):
            p.grad = kept
        optimizer.step()

    told(check.accumulate(solve), "Only the last micro-batch")


@pytest.mark.usefixtures("shared_ranks")
def test_a_mistake_of_the_last_rank_in_the_second_step_of_one_case_alone_is_found():
    def off(worker, ddp, optimizer, micro_batches):
        step = int(getattr(ddp, "again", False))
        own = accumulate.micro_batches(worker.rank, len(micro_batches), step)
        pairs = zip(micro_batches, own, strict=True)
        assert all(torch.equal(given.tokens, right.tokens) for given, right in pairs)
        week03.accumulate(worker, ddp, optimizer, micro_batches)
        if step and worker.rank == worker.world_size - 1:
            with torch.no_grad():
                next(ddp.module.parameters()).view(-1)[0] += 1e-11
        ddp.again = True

    found = found_alone(check.accumulate, week03.accumulate, off)
    assert [one.partition(", counted")[0] for one in found] == [
        "with 2 ranks: 3 micro-batches a rank, step 2, rank 1",
        "with 3 ranks: 2 micro-batches a rank, step 2, rank 2",
        "with 2 ranks: 1 micro-batch a rank, step 2, rank 1",
    ]
    assert all(one.endswith("the gradient of the step: something else") for one in found)


@pytest.mark.usefixtures("shared_ranks")
def test_a_step_that_is_right_but_for_a_factor_shows_the_factor():
    found = check.accumulate(steps(scale=1 + 1e-6)).finding
    assert found.endswith("the gradient of the step: 1.000001 times the right one")
