"""Data parallel keeps a module's strides, and refuses what would be reduced twice."""

import pytest
import torch
from torch import nn

from helpers.parallel.ddp.bucketed import BucketedDDP
from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.overlapped import DDP
from helpers.runtime.launch import launch
from tests.parallel.ddp.modules import Alone, data, make

pytestmark = pytest.mark.usefixtures("kept_ranks")

KINDS = [NaiveDDP, BucketedDDP, DDP]
every_kind = pytest.mark.parametrize("replica", KINDS, ids=["naive", "bucketed", "overlapped"])


class Strided(nn.Module):
    """Parameters with the strides of channels-last images or transposed matrices."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.matrix = nn.Parameter(torch.randn(5, 16).T / 4)

    def forward(self, x):
        return torch.tanh(self.conv(x)).flatten(1) @ self.matrix


def trains_strided(worker, replica):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    twin = Strided().double()
    torch.manual_seed(0)
    ddp = replica(Strided().double())
    assert not ddp.module.matrix.is_contiguous()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True) for m in (twin, ddp)]
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(2 * worker.world_size, 3, 4, 4, generator=generator, dtype=torch.float64)
        for optimizer in optimizers:
            optimizer.zero_grad()
        twin(x).square().mean().backward()
        ddp(x.chunk(worker.world_size)[worker.rank]).square().mean().backward()
        ddp.synchronize()
        for optimizer in optimizers:
            optimizer.step()
    pairs = zip(ddp.module.parameters(), twin.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@every_kind
def test_strides_are_kept_for_fused_optimizers(replica):
    for far in launch(trains_strided, 2, device="cpu", replica=replica):
        assert far < 1e-12


@pytest.mark.parametrize("replica", [BucketedDDP, DDP])
def test_parameters_with_gaps_are_refused(replica):
    module = nn.Linear(4, 4)
    module.weight = nn.Parameter(torch.randn(4, 8)[:, ::2])

    def train():
        ddp = replica(module, Alone(), same=True)
        ddp(torch.ones(1, 4)).sum().backward()
        ddp.synchronize()

    with pytest.raises(ValueError, match="weight is not dense in memory"):
        train()


def test_a_module_in_another_ddp_is_refused():
    module = make("plain", 0)
    DDP(module, Alone(), same=True)
    with pytest.raises(RuntimeError, match=r"another DDP .* layers.0.weight.*close\(\) first"):
        DDP(module, Alone(), same=True)


def wrapped_again(worker):
    module = make("plain", 0)
    DDP(module).close()
    second = DDP(module)
    x, y = data(4, worker.rank)
    nn.functional.mse_loss(second(x), y).backward()
    alone = {name: p.grad.clone() for name, p in module.named_parameters()}
    second.synchronize()
    second.close()
    own = [len(p._post_accumulate_grad_hooks or ()) for p in module.parameters()]
    return {"alone": alone, "mean": {n: p.grad for n, p in module.named_parameters()}, "own": own}


def test_a_closed_ddp_lets_go_of_its_module():
    runs = launch(wrapped_again, 2, device="cpu")
    for name, mean in runs[0]["mean"].items():
        expected = (runs[0]["alone"][name] + runs[1]["alone"][name]) / 2
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-14)
    assert not any(runs[0]["own"])


def test_a_second_backward_of_the_first_step_is_refused_too():
    ddp, (x, y) = DDP(make("plain", 0), Alone(), same=True), data(4, 0)
    nn.functional.mse_loss(ddp(x), y).backward()
    with pytest.raises(RuntimeError, match=r"a second gradient for .* inside no_sync"):
        nn.functional.mse_loss(ddp(x), y).backward()
