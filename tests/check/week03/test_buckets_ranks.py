"""Gradients in buckets on ranks: the solution passes, each mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week03.buckets import Net, loss_of
from notebooks.solutions import week03
from tests.check.alone import found_alone
from tests.check.asked import drawn_anew
from tests.check.told import told


@pytest.mark.usefixtures("shared_ranks")
def test_the_solution_passes():
    verdict = check.reduce_in_buckets(week03.reduce_in_buckets)
    assert verdict, verdict


def buckets(
    *,
    divide=1,
    tail=True,
    wait=True,
    reset=True,
    overlap=True,
    stop=False,
    hook="accumulated",
    count="nbytes",
    late=False,
    stray=False,
):
    """The solution, with one part of it changed."""

    def solve(worker, model, bucket_bytes):
        came, waiting, under_way, trained = [], [], [], []

        def send():
            flat = torch.cat([p.grad.flatten() for p in waiting]) / worker.world_size**divide
            work = dist.all_reduce(flat, async_op=True)
            if stop:
                work.wait()
            under_way.append((work, flat, list(waiting)))
            waiting.clear()

        def gradient_came(parameter):
            came.append(parameter)
            if not late or len(came) == len(trained):
                for parameter in came:
                    fill(parameter)
                came.clear()

        def fill(parameter):
            waiting.append(parameter)
            each = [p.grad.nbytes if count == "nbytes" else p.grad.numel() for p in waiting]
            full = sum(each) >= bucket_bytes
            if full and overlap:
                send()

        for parameter in model.parameters():
            if parameter.requires_grad:
                trained.append(parameter)
                if hook == "accumulated":
                    parameter.register_post_accumulate_grad_hook(gradient_came)
                else:  # before the gradient is in .grad
                    parameter.register_hook(lambda _, p=parameter: gradient_came(p))

        def finish():
            if waiting and tail:
                send()
            waiting.clear()
            for work, flat, parameters in under_way if reset else reversed(under_way):
                if wait:
                    work.wait()
                parts = flat.split([p.numel() for p in parameters])
                for parameter, part in zip(parameters, parts, strict=True):
                    parameter.grad.copy_(part.view_as(parameter))
            if reset:
                under_way.clear()
            if stray:
                dist.all_reduce(torch.zeros(1), async_op=True)

        return finish

    return solve


def late_where_buckets_are_large(worker, model, bucket_bytes):
    return buckets(late=bucket_bytes == 400)(worker, model, bucket_bytes)


def one_message_each(worker, model, bucket_bytes):
    return buckets()(worker, model, 1)


def nothing_at_all(worker, model, bucket_bytes):
    return lambda: None


def no_function(worker, model, bucket_bytes):
    buckets()(worker, model, bucket_bytes)


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (buckets(divide=0), "instead of a sum"),
        (buckets(divide=2), "Divided twice"),
        (buckets(divide=1 + 1e-6), "not those of `.grad`"),  # wrong by a millionth
        (buckets(tail=False), "no gradient fills"),
        (buckets(wait=False), "waited for"),
        (buckets(reset=False), "left over from the step before"),
        (buckets(overlap=False), "while the backward computes"),
        (buckets(count="numel"), "Count bytes"),
        (buckets(stop=True), "stood still"),
        (late_where_buckets_are_large, "waited for the very last gradient"),
        (buckets(stray=True), "When may you read its buffer"),
        (buckets(hook="gradient"), ".grad"),
        (one_message_each, "latency"),
        (nothing_at_all, "No all-reduce"),
        (no_function, "Return a function"),
    ],
)
def test_reduce_in_buckets(mistake, hint):
    told(check.reduce_in_buckets(mistake), hint)


@pytest.mark.usefixtures("shared_ranks")
def test_what_the_gradients_are_before_each_backward():
    """None; zeros before the last one; and numbers where a backward came before the hooks."""

    def solve(worker, model, bucket_bytes):
        finish = week03.reduce_in_buckets(worker, model, bucket_bytes)
        trained, steps = [p for p in model.parameters() if p.requires_grad], []

        def look(*_):
            steps.append(len(steps))
            kinds = {"none" if p.grad is None else bool(p.grad.any()) for p in trained}
            first = {True} if worker.world_size == 3 else {"none"}
            assert kinds == (first, {"none"}, {False})[steps[-1]]

        model.register_forward_pre_hook(look)
        return finish

    verdict = check.reduce_in_buckets(solve)
    assert verdict, verdict


@pytest.mark.usefixtures("shared_ranks")
def test_a_mistake_of_the_last_rank_in_the_last_step_of_one_case_alone_is_found():
    def off(worker, model, bucket_bytes):
        own = []
        model.stem.bias.register_post_accumulate_grad_hook(lambda p: own.append(p.grad.clone()))
        finish = week03.reduce_in_buckets(worker, model, bucket_bytes)

        def wrong():
            finish()
            if worker.rank == worker.world_size - 1 and len(own) == 3:
                model.head.bias.grad[-1] += 1e-11
                model.stem.bias.grad.copy_(own[-1])

        return wrong

    found = found_alone(check.reduce_in_buckets, week03.reduce_in_buckets, off)
    assert [one.splitlines()[0] for one in found] == [
        f"with {n} ranks: buckets of {size} bytes, step 3, rank {n - 1}: `.grad` after finish()"
        for n, size in ((2, 400), (3, 500), (2, 1), (2, 10_000))
    ]
    for one in found:
        assert "  head.bias: something else" in one
        assert "  stem.bias: this rank's own gradient\n" in one
        assert one.count(": right") == 5
        assert "?" not in one  # each message has names of this rank's gradients
        assert "head.weight" in one.partition("message 1: ")[2]


def test_grading_draws_other_inputs():
    def loss():
        torch.manual_seed(0)
        return loss_of(Net().double(), rank=0, step=0)

    assert drawn_anew(loss)


def test_ranks_and_steps_have_other_numbers():
    """Else an answer that confuses them would pass."""
    torch.manual_seed(0)
    net, places = Net().double(), [(rank, step) for rank in range(3) for step in range(-1, 3)]
    assert len({loss_of(net, rank, step).item() for rank, step in places}) == len(places)
