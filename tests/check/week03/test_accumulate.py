"""Several micro-batches: the judge and its hints alone, on reports that are written by hand."""

import math

import pytest
import torch

from helpers import check
from helpers.check import elsewhere
from helpers.check.oracle import NotRight
from helpers.check.watch import Event
from helpers.check.week03 import accumulate
from helpers.runtime.runs import Runs
from tests.check.asked import drawn_anew


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


# Of three ranks with two micro-batches each; the summed gradients add up to (16, 1).
SUMS = [[(6, -3), (0, 0)], [(1, 4), (-2, 5)], [(8, 2), (3, -7)]]
SUMS = [[vector(*gradient) for gradient in row] for row in SUMS]
COUNTS = [[2, 0], [4, 1], [3, 5]]  # 15 tokens, 8 of them on rank 2
RIGHT, TOTAL = vector(16 / 15, 1 / 15), vector(16, 1)
MEANS = vector(3 + 0.25 - 2 + 8 / 3 + 0.6, -1.5 + 1 + 5 + 2 / 3 - 1.4)
RANKS = vector(3 - 0.2 + 11 / 8, -1.5 + 1.8 - 5 / 8)


@pytest.mark.parametrize(
    ("update", "kind"),
    [
        (RIGHT, "right"),
        (RIGHT + vector(5e-13, 0), "right"),  # rounding
        (RIGHT + vector(0, 1e-11), "something else"),
        (vector(0, 0), "nothing"),
        (RIGHT * 3, "times N"),
        (RIGHT / 3, "divided by N"),
        (TOTAL, "the sum"),
        (TOTAL / 3, "the sum, divided by N"),
        (MEANS / 6, "mean of means"),
        (MEANS / 3, "means not divided"),
        (MEANS, "sum of means"),
        (RANKS / 3, "mean of the ranks' means"),
        (RANKS, "sum of the ranks' means"),
        (RIGHT / 2, "divided by the micro-batches"),
        (TOTAL / 6, "divided by rows"),
        (TOTAL / 24, "divided by my tokens times N"),
        (vector(11, -5) / 8, "own"),
        (vector(11, -5) / 15, "own over all"),
        (vector(11, -5) / 5, "own over all times N"),
        (vector(-1, 9) / 5, "something else"),  # rank 1's own
        (vector(1, -2) / 15, "last"),
        (vector(1, -2) / 6, "last over its own"),
        (vector(-2 + 0.6, 5 - 1.4) / 3, "last rank means"),
        (RIGHT + vector(0.5, -2), "leftover"),
        (vector(0.5, -2), "something else"),
        (RIGHT * 0.7, "0.7 times the right one"),
        (RIGHT * -1, "-1 times the right one"),
        (RIGHT * (1 + 1e-6), "1.000001 times the right one"),
        (RIGHT * (1 - 1e-9), "0.999999999 times the right one"),
        (vector(math.nan, 1 / 15), "not a number"),
        (vector(16 / 15, math.inf), "not a number"),
    ],
)
def test_the_kind_of_a_gradient_on_rank_2(update, kind):
    assert accumulate.kind_of(update, SUMS, COUNTS, 2, vector(0.5, -2)) == kind


def test_in_the_first_step_nothing_is_left_over():
    assert accumulate.kind_of(RIGHT, SUMS, COUNTS, 2, None) == "right"
    found = accumulate.kind_of(RIGHT + vector(0.5, -2), SUMS, COUNTS, 2, None)
    assert found == "something else"


def test_large_gradients_may_be_rounded_more():
    large = [[1e9 * gradient for gradient in row] for row in SUMS]
    for update, kind in ((RIGHT, "right"), (RIGHT * 0.7, "0.7 times the right one")):
        shifted = 1e9 * update + vector(0, 2e-4)
        assert accumulate.kind_of(shifted, large, COUNTS, 2, None) == kind
        shifted = 1e9 * update + vector(0, 1e-1)
        assert accumulate.kind_of(shifted, large, COUNTS, 2, None) == "something else"


def test_a_rank_without_tokens():
    counts = [[2, 0], [4, 1], [0, 0]]
    sums = [*SUMS[:2], [vector(0, 0), vector(0, 0)]]
    right = vector(5, 6) / 7
    assert accumulate.kind_of(right, sums, counts, 2, None) == "right"
    assert accumulate.kind_of(vector(5, 6) / 3, sums, counts, 2, None) == "the sum, divided by N"
    ranks = vector(6, -3) / 2 + vector(-1, 9) / 5
    assert accumulate.kind_of(ranks, sums, counts, 2, None) == "sum of the ranks' means"


def events(*kinds):
    """A number is an all-reduce of so many bytes."""
    return [
        Event("message", "all_reduce", kind) if isinstance(kind, int) else Event(kind)
        for kind in kinds
    ]


def report(*seen, kind="right", **changes):
    seen = events(*(seen or (400, 200, "synchronize", "step")))
    return {"kind": kind, "events": seen, "nbytes": 600, "counts": [4, 7]} | changes


def runs(step=1, rank=2, **changes):
    """Two right steps of three ranks, with these changes on one rank in one step."""
    found = [[report(), report()] for _ in range(3)]
    found[rank][step] |= changes
    return found


class Asked:
    """A place that runs nothing, and keeps what it was asked to run."""

    def __init__(self):
        self.asked = []

    def launch(self, run, workers, fn, kwargs, timeout):
        self.asked.append((workers, kwargs, timeout))
        return Runs(runs()[:workers])


def test_the_cases_and_the_patience():
    place = Asked()
    with elsewhere.at(place):
        verdict = check.accumulate(None)
    assert verdict
    assert verdict.exercise == "accumulate"
    assert place.asked == [(n, {"micros": m}, 40.0) for n, m in ((2, 3), (3, 2), (2, 1))]


def judged(found, micros=2):
    with pytest.raises(NotRight) as wrong:
        accumulate.judge_accumulate(found, micros)
    return wrong.value


def test_what_is_right_passes():
    accumulate.judge_accumulate(runs(), 2)
    accumulate.judge_accumulate(runs()[:1], 1)


@pytest.mark.parametrize(("step", "rank"), [(0, 0), (0, 2), (1, 0), (1, 2)])
def test_each_rank_counts_in_each_step(step, rank):
    wrong = judged(runs(step, rank, kind="times N", counts=[5, 0]), 3)
    assert wrong.finding == (
        f"3 micro-batches a rank, step {step + 1}, rank {rank}, counted tokens [5, 0]\n"
        "  the gradient of the step: the right one, times the number of ranks"
    )
    assert "Too large" in wrong.hint
    wrong = judged(runs(step, rank, events=events(600, 8, "synchronize", "step")))
    assert wrong.finding == (
        f"the right step, but in step {step + 1} rank {rank} sent 608 bytes, "
        "1.01 times the gradients' 600"
    )
    assert "Only the last micro-batch's backward" in wrong.hint


def test_words_for_one_micro_batch_and_for_a_number():
    wrong = judged(runs(kind="0.7 times the right one"), 1)
    assert wrong.finding == (
        "1 micro-batch a rank, step 2, rank 2, counted tokens [4, 7]\n"
        "  the gradient of the step: 0.7 times the right one"
    )
    assert "divided once. By which number" in wrong.hint


def test_wrong_numbers_come_before_messages():
    found = runs(1, 0, events=events(900, "synchronize"))
    found[2][1]["kind"] = "leftover"
    assert "nothing in `.grad`" in judged(found).hint


def test_a_message_belongs_into_the_last_backward_from_the_second_step_on():
    late = {"events": events("synchronize", 600, "step")}
    accumulate.judge_accumulate(runs(0, 2, **late), 2)
    wrong = judged(runs(1, 2, **late))
    assert wrong.finding == (
        "the right step, but in step 2 rank 2 sent nothing before synchronize()"
    )
    assert "What delays them" in wrong.hint
    accumulate.judge_accumulate(runs(1, 2, events=events("step")), 2)
    accumulate.judge_accumulate(runs(1, 2, events=events("synchronize", "step")), 2)


def test_only_all_reduces_count_as_gradients():
    seen = [*events(600), Event("message", "broadcast", 600), *events("synchronize", "step")]
    accumulate.judge_accumulate(runs(1, 2, events=seen), 2)


DONE = (600, "synchronize", "step")


@pytest.mark.parametrize(
    ("kind", "seen", "hint"),
    [
        ("not a number", DONE, "0/0"),
        ("nothing", DONE, "Which call makes the step"),
        ("nothing", ("step",), "Which call makes the step"),
        ("own", ("step", "synchronize"), "before the gradients were back"),
        ("own", (600, "step", "synchronize"), "before the gradients were back"),
        ("own", DONE, "Where does synchronize() do nothing"),
        ("own over all times N", (600, "step"), "after the last backward"),
        ("times N", ("synchronize", "step"), "Where does synchronize() do nothing"),
        ("something else", ("step",), "after the last backward"),
        ("mean of means", DONE, "A mean of means."),
        ("mean of the ranks' means", DONE, "A mean of means."),
        ("means not divided", DONE, "Means were added up"),
        ("sum of means", DONE, "Means were added up"),
        ("sum of the ranks' means", DONE, "Means were added up"),
        ("times N", DONE, "Too large"),
        ("the sum", DONE, "Too large"),
        ("divided by N", DONE, "Too small, by the number of ranks"),
        ("the sum, divided by N", DONE, "How many tokens are there, over all ranks"),
        ("divided by the micro-batches", DONE, "not by micro-batches"),
        ("divided by my tokens times N", DONE, "by its own count"),
        ("last", DONE, "Which line has taken it away"),
        ("last over its own", DONE, "Which line has taken it away"),
        ("last rank means", DONE, "Which line has taken it away"),
        ("leftover", DONE, "Which call clears it"),
        ("something else", DONE, "divided once. By which number"),
        ("divided by rows", DONE, "divided once. By which number"),
    ],
)
def test_the_hint_for_a_gradient(kind, seen, hint):
    assert hint in accumulate.hint_gradient(kind, report(*seen))


def test_each_kind_has_words():
    candidates = {"right", "divided by rows"} | set(accumulate.WORDS)
    assert len(candidates) == 22
    for own in ("own", "own over all", "own over all times N"):
        assert accumulate.WORDS[own] == "of this rank's tokens alone"


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("RuntimeError: no_sync() after a backward that sends", "that is under way"),
        ("RuntimeError: a second gradient for blocks.0", "Two backwards of one step"),
        ("Trying to backward through the graph a second time", "Which one is run twice"),
        ("rank 1: a likely hang", "the same collectives, in the same order"),
        ("rank 1 died: SIGABRT", "the same collectives, in the same order"),
        ("KeyError: 'x'", ""),
    ],
)
def test_hints_for_errors(finding, hint):
    found = accumulate.hint_failure(finding)
    assert hint in found
    assert bool(found) == bool(hint)


def test_micro_batches_of_unequal_counts():
    shapes = [[b.tokens.shape for b in accumulate.micro_batches(r, 3, 0)] for r in range(3)]
    assert shapes == [[(1, 6), (2, 6), (3, 6)], [(2, 6), (3, 6), (1, 6)], [(3, 6), (1, 6), (2, 6)]]
    counts = [[b.counted() for b in accumulate.micro_batches(r, 3, 1)] for r in range(3)]
    assert [count == 0 for row in counts for count in row] == [False, True] + [False] * 7
    assert all(b.targets.min() == -100 for b in accumulate.micro_batches(2, 3, 0)[:1])


def test_ranks_steps_and_micro_batches_have_other_numbers():
    """Else an answer that confuses them would pass."""
    rows = [
        tuple(row.tolist())
        for rank in range(3)
        for step in range(accumulate.STEPS)
        for batch in accumulate.micro_batches(rank, 3, step)
        for row in batch.tokens
    ]
    assert len(set(rows)) == len(rows)


def test_the_gradient_is_that_of_the_summed_loss():
    model = accumulate.build(accumulate.CONFIG, seed=4, dtype=torch.float64)
    first, second = accumulate.micro_batches(0, 1, 0)[0], accumulate.micro_batches(1, 2, 1)[1]
    found = accumulate.gradient(model, first) + accumulate.gradient(model, second)
    for batch in (first, second):
        logits = model(batch.tokens).flatten(0, 1)
        torch.nn.functional.cross_entropy(
            logits, batch.targets.flatten(), reduction="sum"
        ).backward()
    whole = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
    kept = accumulate.flat(model)
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert kept[0] != 0  # a copy


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: [b.tokens for b in accumulate.micro_batches(0, 1, 0)])
