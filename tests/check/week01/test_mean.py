"""Each solution passes, the stub is told apart, and common mistakes fail with their own hint."""

import math

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week01.mean import hint_global_mean
from notebooks.solutions import week01


def stub(worker, values):
    raise NotImplementedError


def only_my_own(worker, values):
    return values.mean().item() if len(values) else 0.0


def mean_of_means(worker, values):
    mean = values.mean() if len(values) else torch.zeros((), dtype=values.dtype)
    mean = mean.clone()
    dist.all_reduce(mean)
    return (mean / worker.world_size).item()


def empty_rank_forgotten(worker, values):
    mean = values.mean()
    dist.all_reduce(mean)
    return (mean / worker.world_size).item()


def divided_by_ranks(worker, values):
    total = values.sum()
    dist.all_reduce(total)
    return (total / worker.world_size).item()


def only_summed(worker, values):
    total = values.sum()
    dist.all_reduce(total)
    return total.item()


def reduced_to_rank_0(worker, values):
    total = torch.tensor([values.sum().item(), len(values)])
    dist.reduce(total, dst=0)
    return (total[0] / total[1]).item() if total[1] else math.inf


def writes_into_its_input(worker, values):
    right = week01.global_mean(worker, values)
    values.fill_(right)
    return right


def only_rank_0_calls(worker, values):
    total = torch.tensor([values.sum().item(), len(values)])
    if worker.rank == 0:
        dist.all_reduce(total)
    return (total[0] / total[1]).item() if total[1] else 0.0


def returns_nothing(worker, values):
    week01.global_mean(worker, values)


def crashes_on_rank_1(worker, values):
    if worker.rank == 1:
        raise ZeroDivisionError("division by zero")
    return week01.global_mean(worker, values)


@pytest.mark.usefixtures("shared_ranks")
def test_the_solution_passes():
    verdict = check.global_mean(week01.global_mean)
    assert verdict, verdict


def test_the_stub_is_told_apart():
    assert check.global_mean(stub).status == "not written yet"


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (only_my_own, "must the ranks exchange"),
        (mean_of_means, "mean of the ranks' means"),
        (empty_rank_forgotten, "ranks' means"),
        (divided_by_ranks, "divided by the number of ranks"),
        (only_summed, "sum of all values"),
        (reduced_to_rank_0, "*every* rank"),
        (writes_into_its_input, "one of your own"),
        (returns_nothing, "Return the mean"),
        (lambda *given: 1.0001 * week01.global_mean(*given), "before the division"),
    ],
)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.global_mean(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert "rank" in verdict.finding


def test_the_mean_of_a_rank_without_values_counts_as_zero():
    shards = [[2.0, 4.0], []]
    assert "mean of the ranks' means" in hint_global_mean([1.5, 1.5], shards, 3.0)
    assert "must the ranks exchange" in hint_global_mean([3.0, 0.0], [[2.0, 4.0], []], 4.0)


def test_a_hang_is_explained(monkeypatch):
    monkeypatch.setattr("helpers.check.oracle.TIMEOUT", 1.0)
    verdict = check.global_mean(only_rank_0_calls)
    assert verdict.status == "wrong"
    assert "same calls, in the same order" in verdict.hint


def test_a_crash_names_the_rank():
    verdict = check.global_mean(crashes_on_rank_1)
    assert verdict.status == "wrong"
    assert "rank 1 raised ZeroDivisionError" in verdict.finding
    assert "crashes_on_rank_1" in verdict.finding
