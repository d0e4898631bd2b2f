"""Pairs of collectives for autograd: each forward, and the backward that undoes it."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.regions import (
    copy_to,
    gather_from,
    gathered,
    reduce_from,
    reduce_scatter_to,
    sum_scattered,
)
from helpers.comm.transport import GroupTransport
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")

CALLS = (copy_to, reduce_from, gather_from, reduce_scatter_to)
B, T, D = 2, 4, 3  # sequences, tokens, width


def whole(rank: int, kind: str) -> torch.Tensor:
    """Numbers that differ between ranks, places and kinds: inputs, and gradients of results."""
    numbers = torch.arange(B * T * D, dtype=torch.float64).view(B, T, D)
    return (numbers + 100) * (rank + 1) * {"input": 1, "gradient": 7}[kind]


def shard(x: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return x.chunk(ranks, dim=1)[rank]


def turned(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, in another order in memory."""
    return x.mT.contiguous().mT


def passes(worker):
    transport, found = GroupTransport(), []
    for call, some in itertools.product(CALLS, range(3)):  # none, rank 0 alone, both
        order = turned if worker.rank < some else torch.Tensor.contiguous
        x, gradient = (whole(worker.rank, kind) for kind in ("input", "gradient"))
        if call is gather_from:
            x = shard(x, worker.rank, worker.world_size)
        if call is reduce_scatter_to:
            gradient = shard(gradient, worker.rank, worker.world_size)
        x, gradient = order(x).requires_grad_(), order(gradient)
        before = x.detach().clone(), gradient.clone()
        y = call(x, transport)
        y.backward(gradient)
        assert torch.equal(x, before[0])
        assert torch.equal(gradient, before[1])
        found.append((call.__name__, (y.detach(), x.grad)))
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_forward_and_its_backward(ranks):
    inputs, gradients = ([whole(r, kind) for r in range(ranks)] for kind in ("input", "gradient"))
    summed, of_sum = sum(inputs), sum(gradients)
    gathered, of_gathered = (
        torch.cat([shard(x, r, ranks) for r, x in enumerate(each)], 1)
        for each in (inputs, gradients)
    )
    for rank, found in enumerate(launch(passes, ranks, device="cpu")):
        expected = {
            "copy_to": (inputs[rank], of_sum),
            "reduce_from": (summed, gradients[rank]),
            "gather_from": (gathered, shard(of_sum, rank, ranks)),
            "reduce_scatter_to": (shard(summed, rank, ranks), of_gathered),
        }
        for name, pair in found:
            for ours, wanted in zip(pair, expected[name], strict=True):
                assert torch.equal(ours, wanted), name


def without_numbers(worker):
    """A rank without sequences, or a layer without width: there is nothing to send."""
    transport, found = GroupTransport(), []
    with ledger() as log:
        for call, shape in itertools.product(CALLS, [(0, 4, 3), (2, 4, 0)]):
            x = torch.empty(shape, requires_grad=True)
            y = call(x, transport)
            y.sum().backward()
            assert x.grad.shape == x.shape
            found.append(tuple(y.shape))
    return found, len(log.entries)


def test_nothing_is_sent_where_there_are_no_numbers():
    shapes = [(0, 4, 3), (2, 4, 0)] * 2 + [(0, 8, 3), (2, 8, 0)] + [(0, 2, 3), (2, 2, 0)]
    assert list(launch(without_numbers, 2, device="cpu")) == [(shapes, 0)] * 2


class Watched(torch.Tensor):
    """Notes which functions it is given to."""

    seen = ()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen += (function,)
        return args[1]


@pytest.mark.parametrize("call", CALLS)
def test_a_subclass_of_tensor_sees_the_call(call):
    x = torch.ones(1, 2, 3).as_subclass(Watched)
    Watched.seen = ()
    assert call(x, "the transport") == "the transport"
    assert Watched.seen == (call,)


@pytest.mark.parametrize("call", [copy_to, gather_from, reduce_scatter_to])
def test_a_gradient_of_a_gradient_is_refused(call):
    """It would leave out the other ranks."""
    x = torch.ones(1, 2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        (call(x, SimpleNamespace(size=1)) ** 2).sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_tokens_of_more_than_one_dimension_are_cut_as_others_are():
    """(B, T, heads, width): rank 1 of three, two tokens each."""
    every = torch.arange(2 * 6 * 2 * 5.0).view(2, 6, 2, 5)
    shards, done = every.chunk(3, 1), SimpleNamespace(wait=lambda: None)

    def all_gather(into, own):
        assert torch.equal(own, shards[1])
        assert own.is_contiguous()
        into.copy_(torch.stack(shards))
        return done

    def reduce_scatter(own, parts):
        assert parts.is_contiguous()
        own.copy_(2 * parts[1])
        return done

    of_three = SimpleNamespace(size=3, all_gather=all_gather, reduce_scatter=reduce_scatter)
    assert torch.equal(gathered(shards[1], of_three).wait(), every)
    assert torch.equal(sum_scattered(every, of_three).wait(), 2 * shards[1])


def test_tokens_that_do_not_divide_are_refused():
    def odd(worker):
        reduce_scatter_to(torch.ones(1, 3, 2), GroupTransport())

    with pytest.raises(WorkerError, match="3 tokens do not divide over 2 ranks"):
        launch(odd, 2, device="cpu")
