"""Ranks with unequal numbers of batches train as with PyTorch's own Join."""

import pytest
import torch
from torch.distributed.algorithms.join import Join

from helpers.parallel.ddp.join import join
from helpers.parallel.ddp.overlapped import DDP
from helpers.runtime.launch import launch
from tests.parallel.ddp.modules import Third, make

pytestmark = pytest.mark.usefixtures("kept_ranks")


def batch(rank, i):
    generator = torch.Generator().manual_seed(100 * rank + i)
    x = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    return x, torch.randn(4, 3, generator=generator, dtype=torch.float64)


def uneven(worker, counts, kind, options):
    """SGD without momentum has no state, so the optimizer's state does not differ between ranks."""
    count = counts[worker.rank]
    mine = DDP(make(kind, worker.rank), bucket_cap_mb=200 / 2**20, **options)
    theirs = torch.nn.parallel.DistributedDataParallel(make(kind, worker.rank), **options)
    for ddp in (mine, theirs):
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with join(mine) if ddp is mine else Join([theirs]):
            for i in range(count):
                x, y = batch(worker.rank, i)
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(ddp(x), y).backward()
                if ddp is mine:
                    mine.synchronize()
                optimizer.step()
    pairs = zip(mine.module.parameters(), theirs.module.parameters(), strict=True)
    return {
        "far": max((a - b).abs().max().item() for a, b in pairs),
        "state": mine.module.state_dict(),
    }


@pytest.mark.parametrize("counts", [(3, 1), (0, 2), (2, 2), (2, 0, 5)])
@pytest.mark.parametrize(
    ("kind", "options"), [("plain", {}), ("branching", {"find_unused_parameters": True})]
)
def test_the_same_as_torch_s_join(counts, kind, options):
    runs = launch(uneven, len(counts), device="cpu", counts=counts, kind=kind, options=options)
    for run in runs:
        assert run["far"] < 1e-14
        for name, value in run["state"].items():
            assert torch.equal(value, runs[0]["state"][name])


def over_those_that_have_one(worker, counts):
    ddp = DDP(make("plain", 0))
    seen = []
    with join(ddp, divide_by_all=False):
        for _ in range(counts[worker.rank]):
            ddp.zero_grad()
            ddp(torch.ones(1, 7, dtype=torch.float64)).sum().backward()
            ddp.synchronize()
            seen.append(ddp.module.layers[4].weight.grad.sum().item())
    return {"seen": seen, "scale": ddp.scale}


def test_the_mean_may_be_over_the_ranks_that_have_a_batch():
    # all ranks have the same batch, so the mean over the ranks with a batch is the same too
    runs = launch(over_those_that_have_one, 2, device="cpu", counts=(3, 1))
    long, short = runs.column("seen")
    assert short == long[:1]
    assert max(long) - min(long) < 1e-12
    assert abs(long[0]) > 1e-3
    assert runs.column("scale") == [0.5, 0.5]  # afterwards the mean is over all ranks again


def in_micro_batches(worker, counts):
    """Each step has two backwards; the first sends nothing. BatchNorm changes its buffers."""
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3)).double()
    ddp = DDP(module)
    with join(ddp):
        for i in range(counts[worker.rank]):
            ddp.zero_grad()
            x, _ = batch(worker.rank, i)
            with ddp.no_sync():
                ddp(x).sum().backward()
            ddp(x).sum().backward()
            ddp.synchronize()
    ddp.close()
    return module.state_dict()


def test_a_forward_that_sends_nothing_is_not_counted_and_buffers_end_alike():
    first, second = launch(in_micro_batches, 2, device="cpu", counts=(1, 3), timeout=30)
    assert first["0.num_batches_tracked"] == 6  # of the rank with the most steps
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def interrupted(ddp, options, scale):
    x = torch.ones(1, 7, dtype=torch.float64)
    with join(ddp, **options):
        with torch.no_grad():
            ddp(x)
        assert ddp.transport.sent == []  # it is no step
        ddp(x)
        assert len(ddp.transport.sent) == 1
        assert ddp.scale == scale
        raise KeyError


@pytest.mark.parametrize(
    ("average", "options", "usual", "scale"),
    [
        (True, {"divide_by_all": False}, 1 / 3, 1 / 2),
        (True, {}, 1 / 3, 1 / 3),
        (False, {"divide_by_all": False}, 1.0, 1.0),
    ],
)
def test_after_an_interruption_all_is_as_before(average, options, usual, scale):
    """Of three ranks, two have a batch."""
    ddp = DDP(make("plain", 0), Third(), same=True, average=average)
    with pytest.raises(KeyError):
        interrupted(ddp, options, scale)
    assert ddp.scale == usual
    sent = len(ddp.transport.sent)
    ddp(torch.ones(1, 7, dtype=torch.float64))
    assert len(ddp.transport.sent) == sent
    ddp.close()
