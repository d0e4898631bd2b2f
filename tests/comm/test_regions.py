"""Pairs of collectives for autograd: each forward, and the backward that undoes it."""

import itertools

import pytest
import torch

from helpers.comm.regions import copy_to, gather_from, reduce_from, reduce_scatter_to
from helpers.comm.transport import GroupTransport
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch

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


def test_tokens_that_do_not_divide_are_refused():
    def odd(worker):
        reduce_scatter_to(torch.ones(1, 3, 2), GroupTransport())

    with pytest.raises(WorkerError, match="3 tokens do not divide over 2 ranks"):
        launch(odd, 2, device="cpu")
