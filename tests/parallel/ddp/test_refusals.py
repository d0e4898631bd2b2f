"""Data parallel keeps a module's strides, buffers and modes, and raises clear errors."""

import pytest
import torch
from torch import nn

from helpers.parallel.ddp.bucketed import BucketedDDP
from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.overlapped import DDP
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.parallel.ddp.modules import data, make

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


def overlapping(worker, replica):
    module = nn.Linear(4, 4)
    module.weight = nn.Parameter(torch.randn(4, 8)[:, ::2])
    ddp = replica(module)
    ddp(torch.ones(1, 4)).sum().backward()
    ddp.synchronize()


@pytest.mark.parametrize("replica", [BucketedDDP, DDP])
def test_parameters_with_gaps_are_refused(replica):
    with pytest.raises(WorkerError, match="weight is not dense in memory"):
        launch(overlapping, 2, device="cpu", replica=replica)


def wrapped_twice(worker, close):
    module = make("plain", 0)
    first = DDP(module)
    if close:
        first.close()
    second = DDP(module)
    x, y = data(4, worker.rank)
    nn.functional.mse_loss(second(x), y).backward()
    alone = {name: p.grad.clone() for name, p in module.named_parameters()}
    second.synchronize()
    second.close()
    own = [len(p._post_accumulate_grad_hooks or ()) for p in module.parameters()]
    return {"alone": alone, "mean": {n: p.grad for n, p in module.named_parameters()}, "own": own}


def test_a_module_in_another_ddp_is_refused():
    with pytest.raises(WorkerError, match=r"another DDP .* layers.0.weight.*close\(\) first"):
        launch(wrapped_twice, 2, device="cpu", close=False)


def test_a_closed_ddp_lets_go_of_its_module():
    runs = launch(wrapped_twice, 2, device="cpu", close=True)
    for name, mean in runs[0]["mean"].items():
        expected = (runs[0]["alone"][name] + runs[1]["alone"][name]) / 2
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-14)
    assert not any(runs[0]["own"])


def frozen(worker, replica):
    replica(nn.Linear(2, 2).requires_grad_(False))


@every_kind
def test_nothing_to_train_is_said(replica):
    with pytest.raises(WorkerError, match="nothing to train: no parameter of the module"):
        launch(frozen, 1, device="cpu", replica=replica)


def twice_at_once(worker):
    ddp = DDP(make("plain", 0))
    x, y = data(4, 0)
    nn.functional.mse_loss(ddp(x), y).backward()
    nn.functional.mse_loss(ddp(x), y).backward()


def test_a_second_backward_of_the_first_step_is_refused_too():
    with pytest.raises(WorkerError, match=r"a second gradient for .* inside no_sync"):
        launch(twice_at_once, 2, device="cpu")


def running_mean(worker, **options):
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    ddp = DDP(module, **options)
    means = []
    for step in range(2):
        ddp.zero_grad()
        x = torch.full((4, 3), float(worker.rank + step), dtype=torch.float64)
        ddp(x).sum().backward()
        ddp.synchronize()
        means.append(module[0].running_mean.clone())
    ddp.eval()
    ddp(x)  # sends nothing, and changes nothing
    return means


def test_buffers_drift_apart_unless_they_are_broadcast():
    first, second = launch(running_mean, 2, device="cpu")
    assert not torch.equal(first[0], second[0])
    first, second = launch(running_mean, 2, device="cpu", broadcast_buffers=True)
    # each forward starts with rank 0's buffers, and then adds this rank's own data
    assert torch.equal(first[1] - 0.1 * 1, second[1] - 0.1 * 2)


def sparse(worker, replica):
    ddp = replica(nn.Embedding(5, 3, sparse=True))
    ddp(torch.tensor([1, 2])).sum().backward()
    ddp.synchronize()


def with_graph(worker, replica):
    ddp = replica(nn.Linear(3, 1))
    ddp(torch.ones(1, 3)).square().sum().backward(create_graph=True)
    ddp.synchronize()


@every_kind
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_sparse_gradients_and_graphs_are_refused(replica):
    with pytest.raises(WorkerError, match="the gradient of weight is sparse"):
        launch(sparse, 2, device="cpu", replica=replica)
    with pytest.raises(WorkerError, match=r"has a graph.*torch.autograd.grad"):
        launch(with_graph, 2, device="cpu", replica=replica)
