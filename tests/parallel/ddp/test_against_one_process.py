"""Each kind of data parallel equals its twin in one process at every step.

The ranks start from different values on purpose: rank 0's values must be used. Absolute tolerance
in float64: 1e-12, because sums over rows have another order, with errors of some 1e-16 each.
"""

import pytest
import torch

from helpers.parallel.ddp.bucketed import BucketedDDP
from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.overlapped import DDP
from helpers.runtime.launch import launch
from tests.parallel.ddp.modules import data, gradients, make

pytestmark = pytest.mark.usefixtures("kept_ranks")
TOLERANCE = 1e-12
ROWS = 12
TINY = {"bucket_cap_mb": 200 / 2**20}  # several buckets; the last bucket is not full
KINDS = [
    (NaiveDDP, {}),
    (BucketedDDP, TINY),
    (BucketedDDP, {}),
    (DDP, TINY | {"first_bucket_mb": 50 / 2**20}),
    (DDP, {}),
    (DDP, TINY | {"find_unused_parameters": True}),
]
IDS = ["naive", "bucketed", "one bucket", "overlapped", "one bucket overlapped", "searching"]


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


@pytest.mark.parametrize(("replica", "options"), KINDS, ids=IDS)
@pytest.mark.parametrize("kind", ["plain", "tied"])
@pytest.mark.parametrize("workers", [2, 3])
def test_the_same_as_one_process(replica, options, kind, workers):
    runs = launch(
        train, workers, device="cpu", kind=kind, replica=replica, options=options, micro_batches=1
    )
    for run in runs:
        assert max(run["worst"]) < TOLERANCE
        for name, value in run["state"].items():  # the replicas have the same bits
            assert torch.equal(value, runs[0]["state"][name])


@pytest.mark.parametrize(("replica", "options"), KINDS, ids=IDS)
def test_micro_batches_are_sent_once(replica, options):
    runs = launch(
        train, 2, device="cpu", kind="plain", replica=replica, options=options, micro_batches=3
    )
    assert max(runs[0]["worst"] + runs[1]["worst"]) < TOLERANCE


@pytest.mark.parametrize(("replica", "options"), KINDS, ids=IDS)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_gradients_may_be_zeroed_where_they_lie(replica, options, micro_batches):
    """With zeros instead of None, the next backward adds to the bucket itself."""
    case = {"replica": replica, "options": options, "micro_batches": micro_batches}
    runs = launch(train, 2, device="cpu", kind="plain", to_none=False, **case)
    assert max(runs[0]["worst"] + runs[1]["worst"]) < TOLERANCE


def test_a_world_of_one_and_of_four():
    for workers in (1, 4):
        runs = launch(
            train, workers, device="cpu", kind="tied", replica=DDP, options=TINY, micro_batches=2
        )
        assert max(run["worst"] and max(run["worst"]) for run in runs) < TOLERANCE


@pytest.mark.parametrize("workers", [2, 3])
def test_branches_that_only_some_ranks_use(workers):
    runs = launch(
        train,
        workers,
        device="cpu",
        kind="branching",
        replica=DDP,
        options=TINY | {"find_unused_parameters": True},
        micro_batches=1,
    )
    assert max(max(run["worst"]) for run in runs) < TOLERANCE
