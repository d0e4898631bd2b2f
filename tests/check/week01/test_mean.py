"""Each solution passes, the stub is told apart, and common mistakes fail with their own hint."""

import math
import random

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.oracle import NotRight
from helpers.check.week01.mean import drawn, hint_global_mean, judge_global_mean
from helpers.runtime.runs import Runs
from notebooks.solutions import week01
from tests.check.alone import found_alone, names


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


@pytest.mark.usefixtures("shared_ranks")
def test_a_mistake_of_the_last_rank_in_one_case_alone_is_found():
    """Right to five digits is right; off by 2e-5 is not."""

    def nearly(worker, values):
        return week01.global_mean(worker, values) * (1 + 5e-6)

    def off(worker, values):
        return week01.global_mean(worker, values) * (
            1 + 2e-5 * (worker.rank == worker.world_size - 1)
        )

    assert found_alone(check.global_mean, nearly, off) == [
        "with 1 rank: the mean of all 1 values is 4\n  rank 0 holds [4.0], returned 4.00008",
        "with 2 ranks: the mean of all 4 values is 4\n"
        "  rank 0 holds [1.0, 2.0, 3.0], returned 4\n"
        "  rank 1 holds [10.0], returned 4.00008",
        "with 3 ranks: the mean of all 6 values is 3.66667\n"
        "  rank 0 holds [5.0, 7.0], returned 3.66667\n"
        "  rank 1 holds [], returned 3.66667\n"
        "  rank 2 holds [1.0, -2.0, 3.0, 8.0], returned 3.66674",
        "with 4 ranks: the mean of all 11 values is 3\n"
        "  rank 0 holds [2.0], returned 3\n"
        "  rank 1 holds [4.0, 4.0], returned 3\n"
        "  rank 2 holds [6.0, 6.0, 6.0], returned 3\n"
        "  rank 3 holds [1.0, 1.0, 1.0, 1.0, 1.0], returned 3.00006",
    ]


def judged(*answers, after=None, shards=((2.0, 4.0), (), (9.0,))):
    """The finding and the hint for these answers of the ranks."""
    shards = [list(shard) for shard in shards]
    held = zip(answers, after or shards, strict=True)
    with pytest.raises(NotRight) as wrong:
        judge_global_mean(Runs([{"answer": a, "values": v} for a, v in held]), shards)
    return wrong.value.finding, wrong.value.hint


@pytest.mark.parametrize(
    ("answers", "hint"),
    [
        ((5.0, 5.0, 4.0), "Rank 0 is right"),
        ((15.0, 15.0, 15.0), "the sum of all values"),
        ((0.0, 5.0, 5.0), "before the division"),
        ((math.nan, math.nan, math.nan), "A rank without values has no mean"),
        ((4.0, 4.0, math.nan), "A rank without values has no mean"),
        ((4.0, 4.0, 4.0), "the ranks' means"),
        ((3.0, 0.0, 9.0), "must the ranks exchange"),
        ((3.0, 0.0, 8.0), "before the division"),
        ((math.inf, 1.0, 1.0), "never set"),
        ((1.0, -2e9, 1.0), "never set"),
    ],
)
def test_the_hint_for_answers_of_three_ranks(answers, hint):
    finding, found = judged(*answers)
    assert hint in found
    assert finding.startswith("the mean of all 3 values is 5\n")


def test_the_sum_divided_by_the_ranks():
    found = judged(4.0, 4.0, after=[[2.0], [1.0, 1.0, 4.0]], shards=[[2.0], [1.0, 1.0, 4.0]])
    assert "Ranks are not values" in found[1]


def test_what_is_no_number_and_what_was_written_name_the_rank():
    assert judged(5.0, "5", 5.0) == ("rank 1 returned '5'", "Return one number.")
    assert judged(5.0, 5.0, None)[0] == "rank 2 returned None"
    assert judged(None, None, None)[0] == "every rank returned None"
    finding, hint = judged(5.0, 5.0, 5.0, after=[[2.0, 4.0], [], [5.0]])
    assert finding == "rank 2 was given [9.0] and holds [5.0] afterwards"
    assert "one of your own" in hint


@pytest.mark.usefixtures("shared_ranks")
def test_grading_draws_other_inputs():
    shards = [drawn(random.Random(secret)) for secret in range(9)]
    assert {tuple(map(len, one)) for one in shards} == {(2, 0, 5)}
    assert len({str(one) for one in shards}) == 9
    with drawn_from(7):
        wheres = names(found_alone(check.global_mean, week01.global_mean, lambda *_: None))
    assert wheres == ["with 1 rank", "with 2 ranks", "with 3 ranks", "with 4 ranks",
                      "with 3 ranks", "with 3 ranks"]  # fmt: skip


@pytest.mark.usefixtures("shared_ranks")
def test_a_tensor_of_one_number_is_a_number():
    assert check.global_mean(lambda *given: torch.tensor([week01.global_mean(*given)]))
    verdict = check.global_mean(lambda *given: torch.ones(2, 3))
    assert "rank 0 returned (2, 3)" in verdict.finding
