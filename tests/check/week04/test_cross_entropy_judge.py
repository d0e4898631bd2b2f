"""The judge of the cross-entropy, alone, and what one rank reports, without messages."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from helpers.check.oracle import HANG_HINT, NotRight
from helpers.check.week04 import cross_entropy
from helpers.check.week04.cross_entropy_values import Cut, gradients, losses
from helpers.check.week04.kinds import INFINITE, OTHER, RIGHT

SIZES = (3, 2, 4)
CASE = "a vocabulary of 9 in parts (3, 2, 4)"


def report(**changes):
    right = {
        "loss": RIGHT, "shown": 12.5, "right": 12.5, "gradient": RIGHT, "unwaited": 0,
        "messages": [("all_reduce", 96)] * 3, "changed": False,
    }  # fmt: skip
    return right | changes


def judged(rank=2, ignored=False, huge=0, **changes):
    runs = [report() for _ in SIZES]
    runs[rank] = report(**changes)
    with pytest.raises(NotRight) as wrong:
        cross_entropy.judge_loss(deepcopy(runs), SIZES, ignored, huge)
    return wrong.value


def test_what_is_right_passes():
    most = report(messages=[("all_reduce", 96)] * 5)
    cross_entropy.judge_loss([report(), report(), most], SIZES, True, -1)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_mistake_of_each_rank_is_found(rank):
    wrong = judged(rank, returned="tuple")
    assert wrong.finding == f"{CASE}: rank {rank} returned tuple"
    wrong = judged(rank, unwaited=1)
    assert wrong.finding == f"{CASE}: rank {rank} returned before an all-reduce was over"
    assert "only starts" in wrong.hint
    wrong = judged(rank, loss="the mean", shown=1.0416666)
    assert wrong.finding == f"{CASE}: the loss of rank {rank} is 1.04167; one process has 12.5"
    assert "not a mean" in wrong.hint
    wrong = judged(rank, loss="of shape (2,), not ()", shown=None)
    assert f"the loss of rank {rank} is of shape (2,), not (); one" in wrong.finding
    wrong = judged(rank, gradient="the sign")
    assert wrong.finding == (
        f"{CASE}: the loss is right, but the gradient of rank {rank}'s logits is not"
    )
    assert "sign is wrong" in wrong.hint
    wrong = judged(rank, changed=True)
    assert wrong.finding == (
        f"{CASE}: right, but rank {rank} wrote into the tensors that it was given"
    )
    assert "works in place" in wrong.hint


def test_a_wrong_loss_comes_before_a_gradient():
    runs = [report(gradient="the sign"), report(), report(loss="the mean")]
    with pytest.raises(NotRight, match="the loss of rank 2"):
        cross_entropy.judge_loss(runs, SIZES, False, 0)


def test_a_loss_without_messages_and_one_that_is_not_finite():
    assert "this rank's part" in judged(loss=OTHER, messages=[]).hint
    assert "needs all ranks" in judged(loss=OTHER).hint
    assert "The logarithm of 0" in judged(loss=INFINITE, shown=float("-inf")).hint
    assert "exp of a large logit" in judged(loss=INFINITE, shown=float("inf")).hint


def test_the_words_for_a_case():
    targets, logits = ", -100 as some targets", ", logits of about {}10,000"
    assert judged(ignored=True, changed=True).finding.startswith(f"{CASE}{targets}: right")
    wrong = judged(ignored=True, huge=-1, changed=True)
    assert wrong.finding.startswith(f"{CASE}{targets}{logits.format('-')}: right")
    assert judged(huge=1, changed=True).finding.startswith(f"{CASE}{logits.format('')}: right")


@pytest.mark.parametrize("rank", [0, 2])
def test_messages_that_are_too_large_or_too_many(rank):
    wrong = judged(rank, messages=[("all_gather", 480), ("all_reduce", 1)])
    assert wrong.finding == (
        f"{CASE}, 2 x 6 tokens: rank {rank} sent 481 bytes\n"
        "  all_gather of 480 bytes\n  all_reduce of 1 bytes\n"
        f"  its own logits are {96 * SIZES[rank]} bytes, and one number for each token is 96 bytes"
    )
    assert "grow with the vocabulary" in wrong.hint
    wrong = judged(rank, messages=[("all_reduce", 8)] * 6)
    assert wrong.finding == f"{CASE}: rank {rank} started 6 messages"
    assert "Send all tokens' numbers together" in wrong.hint


def run(solve, rank=1, sizes=SIZES, ignored=True, huge=0):
    worker = SimpleNamespace(rank=rank, world_size=len(sizes))
    return cross_entropy.run_loss(worker, solve, sizes, ignored, huge)


def right(rank=1):
    cut = Cut(*cross_entropy.inputs(SIZES, True, 0), SIZES, rank)
    return losses(cut)[RIGHT], gradients(cut)[RIGHT]


def test_what_a_rank_gets_and_reports():
    given = []

    def solve(worker, *rest):
        given.append(rest)
        return right(worker.rank)

    logits, targets = cross_entropy.inputs(SIZES, True, 0)
    value = losses(Cut(logits, targets, SIZES, 0))[RIGHT].item()
    starts = (0, 3, 5)
    for rank, start in enumerate(starts):
        found = run(solve, rank)
        assert found == report(shown=pytest.approx(value), right=pytest.approx(value), messages=[])
        mine, aims, at = given[rank]
        assert torch.equal(mine, logits[..., start : start + SIZES[rank]])
        assert mine.is_contiguous()
        assert torch.equal(aims, targets)
        assert at == start


def test_what_a_rank_returns():
    assert run(lambda *given: right()[0])["returned"] == "Tensor"
    assert run(lambda *given: (*right(), None))["returned"] == "tuple"
    assert run(lambda *given: list(right()))["loss"] == RIGHT
    found = run(lambda *given: (right()[0].item(), right()[1]))
    assert (found["loss"], found["gradient"]) == (RIGHT, RIGHT)
    found = run(lambda *given: (right()[0].expand(3), -right()[1]))
    assert found["loss"] == "of shape (3,), not ()"
    assert found["shown"] is None
    assert found["gradient"] == "the sign"
    assert run(lambda *given: (None, right(2)[1]))["loss"] == "no tensor: NoneType"
    assert run(lambda *given: (right()[0], right(2)[1]))["gradient"].startswith("of shape")


def test_what_a_rank_wrote_into():
    def writes(place):
        def solve(worker, *given):
            given[place][-1, -1] = 1
            return right()

        return run(solve)

    assert writes(0)["changed"]
    assert writes(1)["changed"]


@pytest.mark.parametrize(
    ("finding", "hint"),
    [
        ("index 7 is out of bounds", "A target is a token of the whole vocabulary"),
        ("IndexError: list", "A target is a token of the whole vocabulary"),
        ("rank 1: no sign of life", HANG_HINT),
        ("rank 1 died: SIGABRT", HANG_HINT),
        ("The size of tensor a must match the size of tensor b", "The parts of the vocabulary"),
        ("stack expects tensors of the same size", "The parts of the vocabulary"),
        ("KeyError: 'x'", ""),
    ],
)
def test_hints_for_errors(finding, hint):
    found = cross_entropy.hint_failure(finding)
    assert found.startswith(hint)
    assert bool(found) == bool(hint)


@pytest.mark.parametrize(("sizes", "ignored", "huge"), cross_entropy.CASES)
def test_the_inputs(sizes, ignored, huge):
    logits, targets = cross_entropy.inputs(sizes, ignored, huge)
    plain, _ = cross_entropy.inputs(sizes, ignored, 0)
    assert logits.shape == (2, 6, sum(sizes))
    assert logits.dtype == torch.float64
    low = torch.zeros(2, 6, sum(sizes))
    low[0] = 10_000.0 * huge
    low[0, 4, : sizes[0]] -= 20_000.0 * bool(huge)
    torch.testing.assert_close(logits - plain, low.double(), rtol=0, atol=1e-8)
    ends = [sum(sizes[: r + 1]) for r in range(len(sizes))]
    assert targets[0, : len(sizes)].tolist() == [end - 1 for end in ends]
    assert targets[1, : len(sizes) - 1].tolist() == ends[:-1]
    places = {(1, 4), (1, 5), (0, 5)} if ignored else set()
    assert {tuple(place) for place in (targets == -100).nonzero().tolist()} == places
    assert targets.max() < sum(sizes)
