"""Ranks with different numbers of steps: the solution passes, each mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week01.uneven import value
from notebooks.solutions import week01
from tests.check.asked import drawn_anew


def stub(worker, gradients, size):
    raise NotImplementedError


def own_loop(worker, gradients, size):
    sums = []
    for gradient in gradients:
        dist.all_reduce(total := gradient.clone())
        sums.append(total)
    return sums


def agreed(op):
    def solve(worker, gradients, size):
        steps = torch.tensor(len(gradients))
        dist.all_reduce(steps, op=op)
        padded = [g.clone() for g in gradients] + [torch.zeros(size)] * int(steps)
        sums = [padded[k].clone() for k in range(int(steps))]
        for total in sums:
            dist.all_reduce(total)
        return sums

    return solve


def no_zeros(worker, gradients, size):
    """A rank with nothing left sends its last gradient again."""
    last = [gradients[-1]] * 4 if gradients else [torch.zeros(size)] * 4
    steps = len(week01.sum_uneven(worker, gradients, size))
    sums = [(gradients + last)[k].clone() for k in range(steps)]
    for total in sums:
        dist.all_reduce(total)
    return sums


def index_error(worker, gradients, size):
    steps = len(week01.sum_uneven(worker, gradients, size))
    return [gradients[k] for k in range(steps)]


def in_place(worker, gradients, size):
    sums = week01.sum_uneven(worker, gradients, size)
    for gradient, total in zip(gradients, sums, strict=False):
        gradient.copy_(total)
    return sums


def means(worker, gradients, size):
    return [s / worker.world_size for s in week01.sum_uneven(worker, gradients, size)]


def own_values(worker, gradients, size):
    steps = len(week01.sum_uneven(worker, gradients, size))
    return ([g.clone() for g in gradients] + [torch.zeros(size)] * 4)[:steps]


def only_rank_0(worker, gradients, size):
    sums = week01.sum_uneven(worker, gradients, size)
    return sums if worker.rank == 0 else []


def one_more(worker, gradients, size):
    return [*week01.sum_uneven(worker, gradients, size), torch.zeros(size)]


def returns_nothing(worker, gradients, size):
    week01.sum_uneven(worker, gradients, size)


def numbers(worker, gradients, size):
    return [total[0].item() for total in week01.sum_uneven(worker, gradients, size)]


def last_number_missing(worker, gradients, size):
    sums = week01.sum_uneven(worker, gradients, size)
    for total in sums:
        total[-1] = 0
    return sums


def one_rank_missing(worker, gradients, size):
    if worker.rank == worker.world_size - 1:
        gradients = [torch.zeros(size) for _ in gradients]
    return week01.sum_uneven(worker, gradients, size)


MISTAKES = [
    (agreed(dist.ReduceOp.MIN), "stopped at the shortest"),
    (agreed(dist.ReduceOp.SUM), "as many steps as gradients"),
    (no_zeros, "no gradient left"),
    (index_error, "no gradient for that step"),
    (in_place, "a tensor of your own"),
    (means, "the mean over the ranks"),
    (own_values, "every rank the result"),
    (only_rank_0, "different lengths"),
    (one_more, "There are 3 steps"),
    (returns_nothing, "Return a list"),
    (numbers, "one tensor of 3 numbers"),
    (last_number_missing, "one tensor of 3 numbers"),
    (one_rank_missing, "Which ranks are in the sum"),
]


@pytest.mark.usefixtures("shared_ranks")
def test_the_solution_passes():
    verdict = check.sum_uneven(week01.sum_uneven)
    assert verdict, verdict


def test_the_maximum_is_a_solution_too():
    assert check.sum_uneven(agreed(dist.ReduceOp.MAX))


def test_the_stub_is_told_apart():
    assert check.sum_uneven(stub).status == "not written yet"


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.sum_uneven(mistake)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict
    assert "rank" in verdict.finding


def test_a_hang_is_explained(monkeypatch):
    monkeypatch.setattr("helpers.check.oracle.TIMEOUT", 1.0)
    verdict = check.sum_uneven(own_loop)
    assert verdict.status == "wrong"
    assert "before the loop" in verdict.hint, verdict


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: value(1, 0))
