"""The states before the parts, and their gradients, are those of one process."""

import pytest
import torch

from helpers.comm.messages import Peers
from helpers.parallel.cut_sequence.handing_on import state_before
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")
SHAPES = {"each number": (2, 3, 4), "shared": (2, 3, 1)}


def steps_of(ranks, shape, seed=0):
    """Each rank's decay, last state, and the direction in which the loss uses its state."""
    g = torch.Generator().manual_seed(seed)
    return [
        tuple(
            torch.randn(s, generator=g, dtype=torch.float64) for s in (shape, (2, 3, 4), (2, 3, 4))
        )
        for _ in range(ranks)
    ]


def on_ranks(worker, shape):
    decay, end, way = steps_of(worker.world_size, shape)[worker.rank]
    decay.requires_grad_()
    end.requires_grad_()
    before = state_before(decay, end, Peers())
    loss = (before * way).sum() + before.square().sum() + 0 * (decay * end).sum()
    return before.detach(), *torch.autograd.grad(loss, (decay, end))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_states_and_gradients_are_those_of_one_process(ranks, shape):
    runs = launch(on_ranks, ranks, device="cpu", shape=shape)
    steps = steps_of(ranks, shape)
    h, states = torch.zeros(2, 3, 4, dtype=torch.float64), []
    loss = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for decay, end, way in steps:
        states.append(h.detach())
        loss = loss + (h * way).sum() + h.square().sum()
        h = decay.requires_grad_() * h + end.requires_grad_()
    loss.backward()
    for (before, *gradients), state, (decay, end, _) in zip(runs, states, steps, strict=True):
        wanted = [torch.zeros_like(t) if t.grad is None else t.grad for t in (decay, end)]
        for found, right in zip((before, *gradients), (state, *wanted), strict=True):
            torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
