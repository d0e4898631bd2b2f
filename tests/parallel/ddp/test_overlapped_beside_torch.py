"""DDP beside PyTorch's own: gradients, calls, bytes, sizes of buckets, unused parameters."""

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.parallel.ddp.overlapped import DDP
from helpers.runtime.launch import launch
from tests.parallel.ddp.modules import data, gradients, make

pytestmark = pytest.mark.usefixtures("kept_ranks")


def backward(ddp, step, rank, world):
    x, y = data(12, step)
    torch.nn.functional.mse_loss(ddp(x[rank::world]), y[rank::world]).backward()


def beside_torch(worker, kind, ours, theirs):
    """Compare gradients, calls and bytes with PyTorch's DDP at the same bucket size."""
    torch.set_num_threads(1)
    rank, world = worker.rank, worker.world_size
    mine = DDP(make(kind, 0), **ours)
    other = torch.nn.parallel.DistributedDataParallel(
        make(kind, 0), gradient_as_bucket_view=True, **theirs
    )
    result = []
    for step in range(4):
        logs = []
        for ddp in (mine, other):
            ddp.zero_grad(set_to_none=step < 2)  # zeros stay in the buckets
            with ledger() as log:
                backward(ddp, step, rank, world)
                if ddp is mine:
                    ddp.synchronize()
            logs.append((len(log.of("all_reduce").entries), log.payload))
        theirs_now, ours_now = gradients(other.module), gradients(mine.module)
        missing = {n for n in ours_now if (ours_now[n] is None) != (theirs_now[n] is None)}
        far = max(
            (ours_now[n] - theirs_now[n]).abs().max().item()
            for n in ours_now
            if ours_now[n] is not None and theirs_now[n] is not None
        )
        result.append((logs, missing, far))
    return result


@pytest.mark.parametrize("kind", ["plain", "tied"])
def test_beside_torch_s_own(kind):
    for run in launch(beside_torch, 2, device="cpu", kind=kind, ours={}, theirs={}):
        for logs, missing, far in run[1:]:  # both DDPs make their buckets in the first step
            assert not missing
            assert far < 1e-15
            (our_calls, our_payload), (their_calls, their_payload) = logs
            assert our_calls <= their_calls
            assert our_payload <= their_payload


def sizes_beside_torch(worker, options):
    """The buckets' bytes, ours and PyTorch's, for a model of five layers with 1 MiB each."""
    layers = [torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(5))) for _ in "ab"]
    mine = DDP(layers[0], **options)
    other = torch.nn.parallel.DistributedDataParallel(layers[1], **options)
    for _ in range(3):  # PyTorch's DDP reports its buckets in the third step
        for ddp in (mine, other):
            ddp.zero_grad()
            ddp(torch.ones(1, 512)).sum().backward()
            if ddp is mine:
                mine.synchronize()
    theirs = other._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return [bucket.flat.nbytes for bucket in mine.buckets], [int(n) for n in theirs.split(",")]


@pytest.mark.parametrize(
    ("options", "count"), [({}, 2), ({"bucket_cap_mb": 2}, 3), ({"bucket_cap_mb": 25}, 1)]
)
def test_buckets_are_as_large_as_torch_s_own(options, count):
    ours, theirs = launch(sizes_beside_torch, 2, device="cpu", options=options)[0]
    assert ours == theirs
    assert len(ours) == count


def test_unused_parameters_beside_torch_s_own():
    options = {"find_unused_parameters": True}
    for run in launch(
        beside_torch, 2, device="cpu", kind="branching", ours=options, theirs=options
    ):
        for step, (_, missing, far) in enumerate(run):
            assert far < 1e-15
            # if no rank used a parameter, both leave the gradient None
            assert not missing, (step, missing)
