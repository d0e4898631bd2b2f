"""The last tokens of the rank before, and their gradients back."""

import pytest
import torch

from helpers.comm.halo import previous_tokens
from helpers.comm.messages import Peers
from helpers.runtime.launch import launch
from tests.comm.threads import on_threads


def parts(ranks, lengths):
    whole = torch.arange(2 * sum(lengths) * 3, dtype=torch.float64).view(2, -1, 3)
    return whole, whole.split(lengths[:ranks], 1)


def weights(rank, count):
    """What the loss of a rank multiplies its halo by, (B, E, k): no two numbers are equal."""
    return torch.arange(2 * 3 * count, dtype=torch.float64).view(2, 3, count) + 100 * rank


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("lengths", [[1], [2, 1], [4, 3, 0], [2, 2, 5, 2]], ids=str)
def test_who_sends_what_to_whom(lengths, count):
    """In threads. No gradient is contiguous, and each rank has its own weights of the halo."""
    ranks, whole = len(lengths), parts(len(lengths), lengths)[0]

    def body(peers):
        x = whole.split(lengths, 1)[peers.rank].clone().requires_grad_()
        got = previous_tokens(x, count, peers)
        given = list(peers.sent)
        grad = torch.zeros_like(x)
        if got.requires_grad:
            (grad,) = torch.autograd.grad(got, x, weights(peers.rank, count).mT)
        return got.detach(), grad, given, peers.sent[len(given) :]

    for rank, (got, grad, forward, backward) in enumerate(on_threads(ranks, body)):
        start, size = sum(lengths[:rank]), 2 * count * 3
        before = whole[:, start - count : start] if rank else whole.new_zeros(2, count, 3)
        assert torch.equal(got, before)
        expected = whole.new_zeros(2, lengths[rank], 3)
        if rank < ranks - 1:
            expected[:, lengths[rank] - count :] = weights(rank + 1, count).mT
        assert torch.equal(grad, expected)
        assert forward == ([(rank + 1, size)] if size and rank < ranks - 1 else [])
        assert backward == ([(rank - 1, size)] if size and rank else [])


def test_a_part_that_is_too_short():
    """The last rank may have any number of tokens."""

    def body(peers):
        x = torch.ones(1, [2, 1][peers.rank], 4)
        if peers.rank == 1:
            return previous_tokens(x, 2, peers).shape
        with pytest.raises(ValueError, match=r"rank 0 has 2 tokens, .* needs its last 3: give"):
            previous_tokens(x, 3, peers)
        return previous_tokens(x, 2, peers).shape

    assert on_threads(2, body) == [(1, 2, 4)] * 2


def test_on_ranks():
    def halo(worker):
        x = torch.arange(4.0).view(1, 2, 2) + 10 * worker.rank
        got = previous_tokens(x.requires_grad_(), 1, Peers())
        (grad,) = torch.autograd.grad(got.mT.sum(), x)
        return got.tolist(), grad.tolist()

    first = [[[0.0, 0.0]]], [[[0.0, 0.0], [1.0, 1.0]]]
    assert list(launch(halo, 2, device="cpu")) == [first, ([[[2.0, 3.0]]], [[[0.0, 0.0]] * 2])]
