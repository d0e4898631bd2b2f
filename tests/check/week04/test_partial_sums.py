"""Partial sums of gradients: the solution passes, each mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week04 import partial_sums
from notebooks.solutions import week04
from tests.check.asked import drawn_anew


@pytest.mark.usefixtures("shared_ranks")
def test_the_solution_passes():
    verdict = check.sum_partial_gradients(week04.sum_partial_gradients)
    assert verdict, verdict


@pytest.mark.usefixtures("shared_ranks")
def test_the_stub_is_told_apart():
    def stub(worker, model, cut):
        raise NotImplementedError

    assert check.sum_partial_gradients(stub).status == "not written yet"


def sums(which=lambda name, cut: name not in cut, change=lambda gradient, worker: gradient):
    """Sum the gradients of some of the parameters."""

    def solve(worker, model, cut):
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and which(name, cut):
                dist.all_reduce(parameter.grad)
                parameter.grad = change(parameter.grad, worker)

    return solve


def nothing(worker, model, cut):
    pass


def no_care_for_frozen(worker, model, cut):
    for name, parameter in model.named_parameters():
        if name not in cut:
            dist.all_reduce(parameter.grad)


def twice(worker, model, cut):
    week04.sum_partial_gradients(worker, model, cut)
    week04.sum_partial_gradients(worker, model, cut)


def into_copies(worker, model, cut):
    for name, parameter in model.named_parameters():
        if name not in cut and parameter.grad is not None:
            dist.all_reduce(parameter.grad.clone())


def never_waits(worker, model, cut):
    for name, parameter in model.named_parameters():
        if name not in cut and parameter.grad is not None:
            dist.all_reduce(parameter.grad, async_op=True)


def sends_one_more(worker, model, cut):
    """The right gradients; the smallest of a cut parameter is sent, and not used."""
    week04.sum_partial_gradients(worker, model, cut)
    gradients = [model.get_parameter(name).grad for name in sorted(cut)]
    dist.all_reduce(min(gradients, key=torch.numel).clone())


def flattened(worker, model, cut):
    """Right: one message for all."""
    partial = [
        parameter.grad
        for name, parameter in model.named_parameters()
        if name not in cut and parameter.grad is not None
    ]
    flat = torch.cat([gradient.flatten() for gradient in partial])
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in partial])
    for gradient, part in zip(partial, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def norms(name, cut):
    return "norm" in name


def biases(name, cut):
    return name.endswith(".bias") and name not in cut


MISTAKES = [
    (nothing, "No message was sent"),
    (sums(lambda name, cut: name not in cut and not norms(name, cut)), "norms are not summed"),
    (sums(biases), "norms are not summed"),
    (sums(norms), "added after the reduce-scatter"),
    (sums(lambda name, cut: norms(name, cut) or biases(name, cut)), "neither norms nor biases"),
    (sums(lambda name, cut: True), "belongs to one rank"),
    (sums(lambda name, cut: name in cut), "belongs to one rank"),
    (sums(change=lambda gradient, worker: gradient / worker.world_size), "Divided by N"),
    (sums(change=lambda gradient, worker: gradient.float().double()), "another dtype"),
    (sums(change=lambda gradient, worker: 2 * gradient), "Which number has changed besides"),
    (sums(change=lambda gradient, worker: gradient * worker.world_size), "one too many"),
    (twice, "one too many"),
    (into_copies, "norms are not summed"),
    (never_waits, "async_op=True only starts"),
    (no_care_for_frozen, "`.grad` is None"),
    (sends_one_more, "complete already"),
]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint, monkeypatch):
    if mistake in (twice,) or hint.startswith("Which number"):
        monkeypatch.setattr(partial_sums, "RANKS", (3,))  # with two ranks, N is 2
    verdict = check.sum_partial_gradients(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


@pytest.mark.usefixtures("shared_ranks")
def test_another_right_way_passes():
    verdict = check.sum_partial_gradients(flattened)
    assert verdict, verdict


@pytest.mark.usefixtures("shared_ranks")
def test_the_ninth_digit_counts():
    def noisy(size):
        def solve(worker, model, cut):
            week04.sum_partial_gradients(worker, model, cut)
            model.norm.weight.grad[-1] += size

        return solve

    assert check.sum_partial_gradients(noisy(1e-9)).status == "wrong"
    assert check.sum_partial_gradients(noisy(1e-15))  # rounding


@pytest.mark.usefixtures("shared_ranks")
def test_the_last_rank_counts_as_well():
    def wrong_there(worker, model, cut):
        week04.sum_partial_gradients(worker, model, cut)
        if worker.rank == 1:
            model.norm.weight.grad *= 3

    verdict = check.sum_partial_gradients(wrong_there)
    assert verdict.status == "wrong"
    assert "some gradients of rank 1 are not right" in verdict.finding


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_number_of_ranks_is_tried(ranks):
    def wrong_there(worker, model, cut):
        if worker.world_size != ranks:
            week04.sum_partial_gradients(worker, model, cut)

    verdict = check.sum_partial_gradients(wrong_there)
    assert verdict.status == "wrong"
    assert f"with {ranks} ranks" in verdict.finding


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: partial_sums.inputs()[0].tokens)
    assert drawn_anew(lambda: [*partial_sums.inputs()[1].parameters()])
