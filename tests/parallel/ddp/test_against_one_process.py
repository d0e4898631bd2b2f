"""Each kind of data parallel equals its twin in one process at every step.

The ranks start from different values on purpose: rank 0's values must be used. Absolute tolerance
in float64: 1e-12, because sums over rows have another order, with errors of some 1e-16 each.
"""

import pytest
import torch

from helpers.parallel.ddp.after_backward import BucketedDDP, NaiveDDP
from helpers.parallel.ddp.overlapped import DDP
from helpers.runtime.launch import launch
from tests.parallel.ddp.modules import data, gradients, make

pytestmark = pytest.mark.usefixtures("kept_ranks")
TOLERANCE = 1e-12
ROWS = 12
TINY = {"bucket_cap_mb": 200 / 2**20}  # several buckets; the last bucket is not full
SMALL = TINY | {"first_bucket_mb": 50 / 2**20}
SEARCHING = TINY | {"find_unused_parameters": True}
CASES = [  # replica, options, module, ranks, micro-batches, whether gradients are set to None
    *((replica, options, "plain", 2, m, none)
      for replica, options in ((NaiveDDP, {}), (BucketedDDP, TINY), (DDP, SMALL), (DDP, SEARCHING))
      for m, none in ((3, True), (2, False))),
    (NaiveDDP, {}, "tied", 3, 1, True),
    (BucketedDDP, {}, "tied", 3, 1, False),
    (DDP, {}, "tied", 3, 1, True),
    (DDP, TINY, "tied", 1, 2, True),
    (DDP, TINY, "tied", 4, 2, True),
    (DDP, SEARCHING, "branching", 3, 1, True),
]  # fmt: skip


def train(worker, kind, replica, options, micro_batches, steps=4, to_none=True):
    torch.set_num_threads(1)
    twin = make(kind, seed=0)
    ddp = replica(make(kind, seed=worker.rank), **options)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (twin, ddp)]
    worst = [far(ddp.module.state_dict(), twin.state_dict())]
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=to_none)
        x, y = data(ROWS, step)
        torch.nn.functional.mse_loss(twin(x), y).backward()
        mine = slice(worker.rank, None, worker.world_size)
        parts = list(zip(x[mine].chunk(micro_batches), y[mine].chunk(micro_batches), strict=True))
        for i, (a, b) in enumerate(parts):
            loss = torch.nn.functional.mse_loss(ddp(a), b, reduction="sum") / y.numel()
            if i < len(parts) - 1:
                with ddp.no_sync():
                    loss.backward()
                    ddp.synchronize()
            else:
                loss.backward()
        ddp.synchronize()
        # The losses above are divided by the global count: undo the replica's own mean.
        for p in ddp.module.parameters():
            if p.grad is not None:
                p.grad *= worker.world_size
        worst.append(far(gradients(ddp.module), gradients(twin)))
        for optimizer in optimizers:
            optimizer.step()
        worst.append(far(ddp.module.state_dict(), twin.state_dict()))
    return {"worst": worst, "state": ddp.module.state_dict()}


def far(ours, theirs) -> float:
    assert ours.keys() == theirs.keys()
    missing = [n for n in ours if (ours[n] is None) != (theirs[n] is None)]
    assert not missing, missing
    return max((ours[n] - theirs[n]).abs().max().item() for n in ours if ours[n] is not None)


@pytest.mark.parametrize(("replica", "options", "kind", "workers", "micro_batches", "none"), CASES)
def test_the_same_as_one_process(replica, options, kind, workers, micro_batches, none):
    """With zeros instead of None, the next backward adds to the bucket itself."""
    case = {"kind": kind, "replica": replica, "options": options, "micro_batches": micro_batches}
    runs = launch(train, workers, device="cpu", to_none=none, **case)
    for run in runs:
        assert max(run["worst"]) < TOLERANCE
        for name, value in run["state"].items():  # the replicas have the same bits
            assert torch.equal(value, runs[0]["state"][name])
