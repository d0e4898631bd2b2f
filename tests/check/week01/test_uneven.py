"""Ranks with different numbers of steps: the solution passes, each mistake gets its own hint."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week01 import uneven
from helpers.check.week01.uneven import value
from notebooks.solutions import week01
from tests.check.alone import found_alone
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


@pytest.mark.usefixtures("shared_ranks")
def test_a_mistake_of_the_last_rank_in_one_case_alone_is_found():
    def one_step_more(worker, gradients, size):
        zeros = [torch.zeros(size)] * (worker.rank == worker.world_size - 1)
        return week01.sum_uneven(worker, gradients, size) + zeros

    found = found_alone(check.sum_uneven, week01.sum_uneven, one_step_more)
    words = "rank r's gradient of step k is full of (k+1)·10^r; the sums are "
    assert [(one.splitlines()[0], one.splitlines()[-1]) for one in found] == [
        (f"with 4 ranks: {words}[1111.0, 2222.0, 33.0]",
         "  rank 3 has 2 gradients, returned [1111.0, 2222.0, 33.0, 0.0]"),
        (f"with 2 ranks: {words}[10.0, 20.0]",
         "  rank 1 has 2 gradients, returned [10.0, 20.0, 0.0]"),
        (f"with 3 ranks: {words}[101.0, 200.0, 300.0, 400.0]",
         "  rank 2 has 4 gradients, returned [101.0, 200.0, 300.0, 400.0, 0.0]"),
        (f"with 1 rank: {words}[1.0, 2.0]", "  rank 0 has 2 gradients, returned [1.0, 2.0, 0.0]"),
        (f"with 2 ranks: {words}[]", "  rank 1 has 0 gradients, returned [0.0]"),
    ]  # fmt: skip


def test_the_words_for_an_entry():
    assert uneven.plain(torch.full((3,), 4.0)) == 4.0
    assert uneven.plain(torch.tensor([4.0, 4.0, 5.0])) == "[4.0, 4.0, 5.0]"
    assert uneven.plain(torch.tensor([5.0, 4.0, 4.0])) == "[5.0, 4.0, 4.0]"
    assert uneven.plain(torch.ones(4)) == "a tensor of shape (4,)"
    assert uneven.plain(torch.ones(1, 3)) == "a tensor of shape (1, 3)"
    assert uneven.plain(4.0) == "a float"
    assert uneven.sums((2, 0, 1)) == [101.0, 2.0]


def reported(solve, rank=1):
    worker = SimpleNamespace(rank=rank, world_size=3)
    return uneven.run_uneven(worker, solve, (1, 3, 0))


def test_what_a_rank_reports():
    def right(worker, gradients, size):
        assert size == 3
        return tuple(gradient.clone() for gradient in gradients)

    found = reported(right)
    assert found == {"entries": [10.0, 20.0, 30.0], "changed": False}
    assert reported(right, rank=2) == {"entries": [], "changed": False}

    def change(number):
        def solve(worker, gradients, size):
            (gradients.pop, gradients.clear, lambda: gradients.append(torch.zeros(3)),
             lambda: gradients[-1].neg_())[number]()  # fmt: skip

        return reported(solve)

    for number in range(4):
        assert change(number) == {"entries": None, "kind": "NoneType", "changed": True}


def judged(*entries, changed=(), counts=(1, 0, 2)):
    runs = [{"entries": row, "kind": "dict", "changed": r in changed}
            for r, row in enumerate(entries)]  # fmt: skip
    with pytest.raises(NotRight) as wrong:
        uneven.judge_uneven(runs, counts)
    return wrong.value


RIGHT = [101.0, 200.0]


def test_each_rank_returns_a_list_and_keeps_its_gradients():
    assert judged(RIGHT, RIGHT, None).finding == "rank 2 returned dict"
    wrong = judged(RIGHT, RIGHT, RIGHT, changed=[2])
    assert wrong.finding == "rank 2's gradients have changed"
    assert "a tensor of your own" in wrong.hint


@pytest.mark.parametrize(
    ("rows", "counts", "hint"),
    [
        ([RIGHT, RIGHT, [101.0, "a float"]], (1, 0, 2), "one tensor of 3 numbers"),
        ([RIGHT, RIGHT, [101.0]], (1, 0, 2), "How many steps has the longest"),
        ([[], [], []], (1, 0, 2), "stopped at the shortest"),
        ([[111.0] * 3] * 3, (1, 0, 2), "as many steps as gradients"),
        ([[101.0]] * 3, (1, 0, 2), "There are 2 steps, and the list has 1 entries"),
        ([RIGHT, RIGHT, [1.0, 200.0]], (1, 0, 2), "every rank the result"),
        ([[101 / 3, 200 / 3]] * 3, (1, 0, 2), "the mean over the ranks"),
        ([[11.0, 21.0, 31.0]] * 2, (3, 1), "when it has no gradient left"),
        ([[100.0, 200.0]] * 3, (1, 0, 2), "Which ranks are in the sum"),
        ([[12.0, 20.0]] * 2, (1, 2), "Which ranks are in the sum"),
        ([[10.0, 20.0, 3.0]] * 2, (3, 2), "Which ranks are in the sum"),
    ],
)
def test_the_hint_for_lists(rows, counts, hint):
    assert hint in judged(*rows, counts=counts).hint


def test_the_hint_for_an_error():
    for text in ("no sign of life", "SIGABRT"):
        assert "before the loop" in uneven.hint_failure(text)
    assert "What can it contribute" in uneven.hint_failure("IndexError: list")
    assert uneven.hint_failure("KeyError") == ""
