"""The last tokens of the rank before, and their gradients back."""

import pytest
import torch

from helpers.comm.halo import previous_tokens
from helpers.comm.ledger import ledger
from helpers.comm.messages import Peers
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.comm.threads import on_threads

pytestmark = pytest.mark.usefixtures("kept_ranks")


def parts(ranks, lengths):
    whole = torch.arange(2 * sum(lengths) * 3, dtype=torch.float64).view(2, -1, 3)
    return whole, whole.split(lengths[:ranks], 1)


def weights(rank, count):
    """What the loss of a rank multiplies its halo by, (B, E, k): no two numbers are equal."""
    return torch.arange(2 * 3 * count, dtype=torch.float64).view(2, 3, count) + 100 * rank


def halo(worker, lengths, count):
    x = parts(worker.world_size, lengths)[1][worker.rank].requires_grad_()
    with ledger() as forward:
        got = previous_tokens(x, count, Peers())
    with ledger() as backward:  # the gradient that arrives is not contiguous
        ((got.mT * weights(worker.rank, count)).sum() + 0 * x.sum()).backward()
    grad = torch.zeros_like(x) if x.grad is None else x.grad
    return {
        "halo": got.detach(), "grad": grad,
        "sent": (forward.of("send").payload, backward.of("send").payload),
    }  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("lengths", [[4], [3, 5], [5, 3, 0], [3, 4, 6, 2]], ids=str)
def test_the_halo_and_its_gradient(lengths, count):
    ranks = len(lengths)
    whole, _ = parts(ranks, lengths)
    runs = launch(halo, ranks, device="cpu", lengths=lengths, count=count)
    for rank, row in enumerate(runs):
        start, end = sum(lengths[:rank]), sum(lengths[: rank + 1])
        wanted = whole[:, start - count : start] if rank else whole.new_zeros(2, count, 3)
        assert torch.equal(row["halo"], wanted)
        grad = whole.new_zeros(2, lengths[rank], 3)
        if rank < ranks - 1:
            grad[:, end - start - count :] = weights(rank + 1, count).mT
        assert torch.equal(row["grad"], grad)
        bytes_ = 2 * count * 3 * 8
        assert row["sent"] == (bytes_ * (rank < ranks - 1), bytes_ * (rank > 0))


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
    with pytest.raises(WorkerError, match=r"rank 0 has 2 tokens, but the next rank needs its last"):
        launch(halo, 2, device="cpu", lengths=[2, 5], count=3)
