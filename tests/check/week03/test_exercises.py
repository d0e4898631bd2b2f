"""Week 3's exercises: each solution passes, and each classic mistake is told by its own hint."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week03 import accumulate, replicas
from helpers.check.week03.buckets import Net, loss_of
from helpers.models.gpt import loss_sum
from notebooks.solutions import week03
from tests.check import asked


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("name", ["shard", "broadcast_state", "reduce_in_buckets", "accumulate"])
def test_the_solution_passes(name):
    verdict = getattr(check, name)(getattr(week03, name))
    assert verdict, verdict


def told(verdict, hint):
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


# ----------------------------------------------------------------------------- shard


def everything(worker, batch):
    return batch


def the_same_shard(worker, batch):
    return batch.tensor_split(worker.world_size)[0]


def dropped_rows(worker, batch):
    size = len(batch) // worker.world_size
    return batch[worker.rank * size : (worker.rank + 1) * size]


def padded_rows(worker, batch):
    size = -(-len(batch) // worker.world_size)
    rows = [i % len(batch) for i in range(worker.rank * size, (worker.rank + 1) * size)]
    return batch[rows]


def strided(worker, batch):
    return batch[worker.rank :: worker.world_size]


def chunked(worker, batch):
    return batch.chunk(worker.world_size)[worker.rank]


def drawn_anew(worker, batch):
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(worker.rank))
    return batch[order.tensor_split(worker.world_size)[worker.rank]]


def all_to_the_last(worker, batch):
    size = len(batch) // worker.world_size
    end = None if worker.rank == worker.world_size - 1 else (worker.rank + 1) * size
    return batch[worker.rank * size : end]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (everything, "whole batch"),
        (the_same_shard, "same rows"),
        (dropped_rows, "left over"),
        (drawn_anew, "one and the same order"),
        (padded_rows, "more than once"),
        (strided, "rank order"),
        (chunked, "as many parts"),
        (all_to_the_last, "slowest rank"),
    ],
)
def test_shard(mistake, hint):
    told(check.shard(mistake), hint)


# ------------------------------------------------------------------- broadcast_state


def no_buffers(worker, model):
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)


def only_what_trains(worker, model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.broadcast(parameter.detach(), src=0)
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def averaged(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        total = tensor.detach().double()
        dist.all_reduce(total)
        tensor.detach().copy_(total / worker.world_size)


def from_the_last(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=worker.world_size - 1)


def into_copies(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach().clone(), src=0)


def new_tensors(worker, model):
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in list(held.items()):
                if tensor is not None:
                    copy = tensor.detach().clone()
                    dist.broadcast(copy, src=0)
                    again = torch.nn.Parameter(copy, tensor.requires_grad)
                    held[name] = again if held is module._parameters else copy


def through_float(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        message = tensor.detach().float()
        dist.broadcast(message, src=0)
        tensor.detach().copy_(message)


def each_its_own_source(worker, model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=worker.rank)


def by_state_dict(worker, model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (no_buffers, "no optimizer trains"),
        (only_what_trains, "do not train"),
        (averaged, "one rank sends"),
        (from_the_last, "last rank's"),
        (into_copies, "kept its own"),
        (new_tensors, "writes into a tensor"),
        (through_float, "keeps the dtype"),
        (by_state_dict, "persistent=False"),
    ],
)
def test_broadcast_state(mistake, hint):
    told(check.broadcast_state(mistake), hint)


def test_broadcast_state_that_hangs(monkeypatch):
    monkeypatch.setattr("helpers.check.oracle.TIMEOUT", 2.0)
    told(check.broadcast_state(each_its_own_source), "all name the same source")


# ----------------------------------------------------------------- reduce_in_buckets


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


# ------------------------------------------------------------------------ accumulate


def steps(*, send="last", weight="tokens", scale=True, zero="first", step="last"):
    """The solution, with one part of it changed."""

    def solve(worker, ddp, optimizer, micro_batches):
        if zero == "first":
            optimizer.zero_grad()
        tokens = torch.tensor(sum(batch.counted() for batch in micro_batches))
        own = max(int(tokens), 1)
        dist.all_reduce(tokens)
        micros = len(micro_batches)
        for left, batch in zip(reversed(range(micros)), micro_batches, strict=True):
            if zero == "each":
                optimizer.zero_grad()
            sends = {"last": not left, "first": left == micros - 1, "never": False}[send]
            with nullcontext() if sends else ddp.no_sync():
                loss, count = loss_sum(ddp(batch.tokens), batch.targets)
                if weight == "tokens":
                    loss = loss / tokens
                elif weight == "means":
                    loss = loss / count.clamp(min=1) / micros / worker.world_size
                elif weight == "own":
                    loss = loss / own / worker.world_size
                elif weight == "0/0":
                    loss = loss / count
                (loss * worker.world_size * scale if scale else loss).backward()
        if step == "too early":
            optimizer.step()
        if send != "never":
            ddp.synchronize()
        if step == "last" or (step == "on rank 0" and worker.rank == 0):
            optimizer.step()

    return solve


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (steps(send="never"), "sent each other nothing"),
        (steps(send="first"), "that is under way"),
        (steps(weight="means"), "mean of means"),
        (steps(weight="own"), "mean of means"),
        (steps(weight="0/0"), "Means were added up"),
        (steps(weight="sum"), "Too large"),
        (steps(scale=False), "Too small"),
        (steps(scale=1 + 1e-6), "divided once"),  # wrong by a millionth
        (steps(zero="each"), "taken it away"),
        (steps(zero="never"), "nothing in `.grad`"),
        (steps(step="too early"), "before the gradients were back"),
        (steps(step="never"), "makes the step"),
        (steps(step="on rank 0"), "makes the step"),
    ],
)
def test_accumulate(mistake, hint):
    told(check.accumulate(mistake), hint)


def test_accumulate_that_sends_every_micro_batch():
    """By hand: sums that are sent each time and put right afterwards."""

    def solve(worker, ddp, optimizer, micro_batches):
        parameters = list(ddp.module.parameters())
        tokens = torch.tensor(sum(batch.counted() for batch in micro_batches))
        dist.all_reduce(tokens)
        total = [torch.zeros_like(p) for p in parameters]
        for batch in micro_batches:
            optimizer.zero_grad()
            loss, _ = loss_sum(ddp(batch.tokens), batch.targets)
            (loss * worker.world_size / tokens).backward()
            ddp.synchronize()
            for kept, p in zip(total, parameters, strict=True):
                kept += p.grad
        for kept, p in zip(total, parameters, strict=True):
            p.grad = kept
        optimizer.step()

    told(check.accumulate(solve), "Only the last micro-batch")


def test_grading_draws_other_inputs():
    def loss():
        torch.manual_seed(0)
        return loss_of(Net().double(), rank=0, step=0)

    assert asked.drawn_anew(loss)
    assert asked.drawn_anew(lambda: replicas.global_batch(2))
    assert asked.drawn_anew(lambda: replicas.first_numbers(torch.nn.Linear(2, 1), rank=0))
    assert asked.drawn_anew(lambda: [b.tokens for b in accumulate.micro_batches(0, 1, 0)])


def test_ranks_steps_and_micro_batches_have_other_numbers():
    """Else an answer that confuses them would pass."""
    places = [(rank, step) for rank in range(3) for step in range(accumulate.STEPS)]
    rows = [
        tuple(row.tolist())
        for rank, step in places
        for batch in accumulate.micro_batches(rank, 3, step)
        for row in batch.tokens
    ]
    assert len(set(rows)) == len(rows)
    ignored = [b.counted() == 0 for r in (0, 1) for b in accumulate.micro_batches(r, 3, 0)]
    assert ignored == [False, True, False, False, False, False]
    torch.manual_seed(0)
    net = Net().double()
    assert len({loss_of(net, rank, step).item() for rank, step in places}) == len(places)
