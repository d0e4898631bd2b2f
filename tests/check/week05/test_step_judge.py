"""The judge of a pipeline's step, alone, and the kinds of gradients by hand."""

import pytest
import torch

from helpers.check.oracle import NotRight
from helpers.check.week05 import step
from helpers.check.week05.step import HINTS, hint_failure, judge_step, kind_of, number
from helpers.runtime.runs import Runs

ROWS = (2, 5, 3)
SUMS = [torch.tensor(row, dtype=torch.float64) for row in ([6, -3], [1, 4], [-2, 9])]
TOTAL = torch.tensor([5, 10], dtype=torch.float64)
MEANS = torch.tensor([3 + 0.2 - 2 / 3, -1.5 + 0.8 + 3], dtype=torch.float64)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (None, "none"),
        (TOTAL / 10, "right"),
        (TOTAL / 10 + 9e-10, "right"),
        (TOTAL / 10 - 2e-9, "other"),
        (MEANS, "sum of means"),
        (MEANS / 3, "mean of means"),
        (TOTAL, "sum"),
        (TOTAL / 30, "divided twice"),
        (SUMS[2] / 10, "last, of all"),
        (SUMS[2] / 3, "last, of its own"),
        (SUMS[2], "last, sum"),
        (SUMS[0] / 10, "first, of all"),
        (TOTAL / 40, "mean of numbers"),
        (MEANS / 12, "mean of means of numbers"),
        (MEANS / 4, "sum of means of numbers"),
        (SUMS[1] / 10, "other"),
        (0 * TOTAL, "other"),
    ],
)
def test_the_kind_of_a_gradient(found, kind):
    assert kind_of(found, SUMS, ROWS) == kind


def test_a_loss_may_be_off_by_more():
    losses = [total[:1] for total in SUMS]
    assert kind_of(number(0.5 + 9e-6), losses, ROWS, 1e-5) == "right"
    assert kind_of(number(0.5 + 2e-5), losses, ROWS, 1e-5) == "other"
    assert number(None) is number(True) is number("0.5") is None
    assert number(2).dtype == torch.float64


def runs(*gradients, last="right", first="right", returned="0.25"):
    found = [{"gradient": kind, "loss": first, "returned": "None"} for kind in gradients]
    found[-1] |= {"loss": last, "returned": returned}
    return Runs(found)


def judged(*given, rows=ROWS, **named):
    with pytest.raises(NotRight) as wrong:
        judge_step(runs(*given, **named), rows)
    return wrong.value


RIGHT = ("right", "right", "right")


def test_what_is_right_passes():
    judge_step(runs(*RIGHT), ROWS)
    judge_step(runs("right"), ROWS)


def test_the_last_rank_s_loss():
    wrong = judged(*RIGHT, last="sum", returned="5.0")
    assert wrong.finding == "the gradients are right, but the last rank returned 5.0"
    assert "on the last rank" in wrong.hint
    judge_step(runs(*RIGHT, first="none"), ROWS)  # of no other rank


def test_the_words_for_the_gradients():
    assert judged("none", "sum", "other").finding == (
        "micro-batches of 2, 5, 3 rows: `.grad` holds\n  rank 0: nothing\n"
        "  rank 1: the gradient of the sum over the rows\n  rank 2: something else"
    )
    assert judged("right", "last, sum", "right").finding.endswith(
        "  rank 0: the gradient of the mean over all rows\n  rank 1: last, sum\n"
        "  rank 2: the gradient of the mean over all rows"
    )


@pytest.mark.parametrize(
    ("gradients", "hint"),
    [
        (("none", "none", "right"), "No gradient came back to rank 0"),
        (("none", "sum", "sum"), "No gradient came back to rank 0"),
        (("sum", "none", "none"), "Rank 1 does not."),
        (("right", "right", "none"), "Rank 2 does not."),
        (("right", "right", "other"), "write over the input of an earlier"),
        (("right", "other", "right"), "write over the input of an earlier"),
        (("right", "sum", "right"), "Nothing was divided"),
        (("other", "right", "right"), "The ranks disagree"),
        (("other", "sum", "sum"), "The ranks disagree"),
        (("sum", "other", "right"), "Nothing was divided"),
        (("other", "other", "other"), "of the same micro-batch."),
        (("sum of means",) * 3, "m times too large"),
        (("mean of means",) * 3, "A mean of means"),
        (("divided twice",) * 3, "by the number of micro-batches"),
        (("last, of all",) * 3, "Only the last"),
        (("last, of its own",) * 3, "Only the last"),
        (("last, sum",) * 3, "Only the last"),
        (("first, of all",) * 3, "Only the first"),
        (("mean of numbers",) * 3, "divides by the width"),
        (("mean of means of numbers",) * 3, "divides by the width"),
        (("sum of means of numbers",) * 3, "divides by the width"),
    ],
)
def test_the_hint_for_the_ranks_gradients(gradients, hint):
    assert hint in judged(*gradients).hint


def test_each_wrong_kind_has_a_hint():
    assert len(HINTS) == 11


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_sums_are_autograd_s(rank):
    """Of each micro-batch: the summed loss, and its gradient for this rank's stage."""
    stages, inputs, targets = step.make(3, ROWS)
    assert [len(x) for x in inputs] == [len(t) for t in targets] == list(ROWS)
    assert {tuple(x.shape[1:]) for x in (*inputs, *targets)} == {(4,)}
    sums, losses = step.by_micro_batch(stages, inputs, targets, rank)
    for x, target, found, loss in zip(inputs, targets, sums, losses, strict=True):
        y = x
        for stage in stages:
            stage.zero_grad()
            y = torch.tanh(y @ stage[0].weight.t() + stage[0].bias)
        total = (y - target).square().sum()
        total.backward()
        own = [p.grad.flatten() for p in stages[rank].parameters()]
        torch.testing.assert_close(found, torch.cat(own), rtol=1e-12, atol=1e-12)
        assert loss.tolist() == [pytest.approx(total.item())]
    assert not losses[0].requires_grad


def test_numbers_are_the_same_again_and_all_different():
    stages, inputs, targets = step.make(2, ROWS)
    again = step.make(2, ROWS)
    assert torch.equal(stages[1][0].weight, again[0][1][0].weight)
    assert all(map(torch.equal, [*inputs, *targets], [*again[1], *again[2]]))
    rows = [tuple(row.tolist()) for x in (*inputs, *targets) for row in x]
    rows += [tuple(row.tolist()) for stage in stages for row in stage[0].weight]
    assert len(set(rows)) == len(rows) == 28


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("unsupported operand: 'NoneType'", "A stage's input has no gradient"),
        ("element 0 does not require grad", "A stage's input has no gradient"),
        ("backward through the graph a second time", "its own micro-batch's output"),
        ("grad can be implicitly created only for scalar outputs", "In the middle of the model"),
        ("with 1 rank: rank 0 was waiting in recv", "A single rank is the first"),
        ("with 1 rank: invalid send", "A single rank is the first"),
        ("with 12 ranks: rank 0 was waiting in recv", "does each receive have its send"),
        ("with 2 ranks: rank 0 was waiting in send", ""),
        ("with 2 ranks: ValueError in recv", ""),
        ("with 1 rank: KeyError", ""),
    ],
)
def test_hints_for_errors(finding, hint):
    found = hint_failure(finding)
    assert hint in found
    assert bool(found) == bool(hint)
