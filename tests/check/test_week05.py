"""Week 5, beyond the loop over all exercises: answers that are judged by what they do."""

import random

import pytest
import torch

from helpers import check
from helpers.check.week05 import schedules, step
from helpers.check.week05.axes import best, drawn
from helpers.comm.mesh import Layout
from helpers.plans.schedules import RECEIVE, SEND, Action, Message
from notebooks.solutions import week05


@pytest.mark.parametrize("seed", range(6))
def test_the_references_are_the_solutions(seed):
    words, (p, m, v) = schedules.drawn_share(random.Random(seed))
    assert f"{p} ranks, {m} micro-batches" in words
    assert schedules.measured_share(p, m, v) == pytest.approx(week05.bubble_share(p, m, v))
    _, cluster = drawn(random.Random(seed))
    layout = week05.place_axes(*cluster)
    assert best(*cluster) == (layout.size("tp"), layout.size("pp"))


def test_a_micro_batch_may_have_two_digits():
    trace = schedules.run_order(week05.order_1f1b, 2, 12)
    assert (trace["runs"], trace["kept"]) == ("", (2, 1))


def fused_with(kept):
    """The solution, but a group takes only messages for which `kept(message)` holds."""

    def solve(steps):
        groups = []
        for one in steps:
            last = groups[-1][-1] if groups else None
            fits = isinstance(one, Message) and isinstance(last, Message)
            if fits and kept(last, one):
                groups[-1].append(one)
            else:
                groups.append([one])
        return groups

    return solve


def moved(kind, forward):
    """Sends in one direction before all computations; receives after all of them."""

    def solve(steps):
        own = [
            s for s in steps if isinstance(s, Message) and (s.kind, s.forward) == (kind, forward)
        ]
        others = [one for one in steps if one not in own]
        return [[one] for one in (own + others if kind == SEND else others + own)]

    return solve


def turned(steps):
    later = iter([one for one in steps if isinstance(one, Action)][::-1])
    return [[next(later) if isinstance(one, Action) else one] for one in steps]


def with_the_computation(steps):
    groups = week05.fuse_messages(steps)
    return [[*a, *b] for a, b in zip(groups[::2], groups[1::2], strict=False)]


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda steps: [[one] for one in steps], "One message at a time"),
        (fused_with(lambda last, one: last.forward and one.forward), "but not those"),
        *((moved(SEND, way), "sends what it has computed") for way in (True, False)),
        *((moved(RECEIVE, way), "How late may a receive be") for way in (True, False)),
        (with_the_computation, "alone in its group"),
        (turned, "stays as it is"),
        (lambda steps: week05.fuse_messages(steps)[:-1], "keep the last group"),
        (lambda steps: [*week05.fuse_messages(steps), [steps[-1]]], "in one group"),
        *((lambda steps, odd=odd: odd, "a list of lists") for odd in ([[]], [["F0"]], None, [3])),
        (lambda steps: steps, "a list of lists"),
    ],
)
def test_messages_that_are_posted_wrongly_get_a_hint(answer, hint):
    verdict = check.fuse_messages(answer)
    assert verdict.status == "wrong"
    assert hint in verdict.hint


@pytest.mark.parametrize(
    "kept",
    [
        # one of the two exchanges is enough: an activation sent down with a gradient received
        lambda last, one: last.forward and not one.forward,
        lambda last, one: True,
    ],
)
def test_other_groups_pass(kept):
    assert check.fuse_messages(fused_with(kept))
    backwards = lambda steps: [group[::-1] for group in fused_with(kept)(steps)]  # noqa: E731
    assert check.fuse_messages(backwards), "the order inside a group is free"


def axes(**change):
    """The solution, with some sizes changed."""

    def solve(*cluster):
        right = week05.place_axes(*cluster)
        return Layout(**{axis: right.size(axis) for axis in ("pp", "dp", "tp")} | change)

    return solve


def tensor_outside(*cluster):
    right = week05.place_axes(*cluster)
    return Layout(**{axis: right.size(axis) for axis in ("tp", "pp", "dp")})


def three_of_four(nodes, gpus, *model):
    """The first group is inside a node, the second one is not."""
    if gpus != 4:
        return week05.place_axes(nodes, gpus, *model)
    return Layout(pp=1, dp=nodes * gpus // 3, tp=3)


def only_pipeline(nodes, gpus, heads, layers, state, memory):
    """The fewest stages that fit, and no tensor parallelism."""
    for pp in range(1, layers + 1):
        if layers % pp == nodes * gpus % pp == 0 and state <= pp * memory:
            return Layout(pp=pp, dp=nodes * gpus // pp, tp=1)
    return week05.place_axes(nodes, gpus, heads, layers, state, memory)


def with_other(heads=None, layers=None):
    return lambda nodes, gpus, h, n, *memory: week05.place_axes(
        nodes, gpus, heads or h, layers or n, *memory
    )


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda *_: (1, 2, 8), "Return a Layout"),
        (lambda *_: Layout(dp=16), "Name the three axes"),
        (axes(dp=1), "what is left of the GPUs"),
        (axes(dp=10**10), "what is left of the GPUs"),
        (lambda n, g, *_: Layout(pp=1, dp=n * g, tp=1), "Which two axes split"),
        (lambda n, g, *_: Layout(pp=1, dp=1, tp=n * g), "On which links"),
        (tensor_outside, "A Layout's last axis"),
        (three_of_four, "On which links"),
        (lambda n, g, *_: Layout(pp=1, dp=n, tp=g), "no further than its memory"),
        (only_pipeline, "Which axis splits the model first"),
        (with_other(heads=64), "whole heads"),
        (with_other(layers=24), "Equal stages"),
    ],
)
def test_axes_in_a_wrong_place_get_a_hint(answer, hint):
    verdict = check.place_axes(answer)
    assert verdict.status == "wrong"
    assert hint in verdict.hint, verdict


def test_pp_and_dp_may_be_in_any_order():
    def solve(*cluster):
        right = week05.place_axes(*cluster)
        return Layout(**{axis: right.size(axis) for axis in ("dp", "pp", "tp")})

    assert check.place_axes(solve)


@pytest.mark.usefixtures("shared_ranks")
def test_inputs_are_on_the_first_rank_alone_and_targets_on_the_last():
    """The other ranks get tensors of these shapes, and no numbers: those have to be sent."""

    def solve(worker, stage, micro_batches, targets):
        first, last = worker.rank == 0, worker.rank == worker.world_size - 1
        assert all(x.isnan().all() != first for x in micro_batches)
        assert all(target.isnan().all() != last for target in targets)
        answer = week05.pipeline_step(worker, stage, micro_batches, targets)
        return torch.tensor(answer) if last else None

    assert check.pipeline_step(solve), "a tensor is a number too"


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("off", "hint"), [(1e-8, "right to some digits"), (0.0, "the mean over the rows")]
)
def test_small_errors_are_found(off, hint):
    def solve(worker, stage, micro_batches, targets):
        answer = week05.pipeline_step(worker, stage, micro_batches, targets)
        stage[0].bias.grad += off
        return answer and answer * (1 if off else 1.001)

    verdict = check.pipeline_step(solve)
    assert verdict.status == "wrong"
    assert hint in verdict.hint


@pytest.mark.parametrize("doing", ["waiting in send, line 7", "raised ValueError in dist.recv"])
def test_one_rank_has_no_neighbour(doing):
    """The case with one rank is the last one; a hang would take the whole timeout here."""
    found = step.pipeline_step.failure(f"with 1 rank: rank 0 was {doing}", "hang")
    assert "the first and also the last" in found


def test_which_rank_has_which_gradient_is_said():
    right = [torch.ones(2), torch.ones(3)]
    said = step.say_gradients("", ["none", right[1]], right, 2, (2, 1))
    assert said == (
        "micro-batches of 2, 1 rows: `.grad` holds\n  rank 0: no gradient\n"
        "  rank 1: the gradient of the mean over all rows"
    )


def test_only_the_last_rank_returns_the_loss():
    verdict = check.pipeline_step(lambda *given: week05.pipeline_step(*given) or 0.0)
    assert "rank 0 returned 0.0" in verdict.finding
    assert verdict.hint.startswith("Only the last rank knows the loss.")
