"""Tensor and sequence parallelism on GPUs with NCCL: the same numbers, and streams in order."""

from functools import partial

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.regions import gathered, sum_scattered, summed
from helpers.comm.transport import GroupTransport
from helpers.data.batch import random_batch
from helpers.measure.trace import trace
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.libraries.dtensor import DTensorParallel
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.runtime.launch import launch
from helpers.training.twin import compare

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices"),
]

CONFIG = GPTConfig(vocab=33, context=12, width=24, layers=2, heads=4, dropout=0.1)
TRANSFORMS = {
    "tensor": tensor_parallel,
    "tensor, plain": partial(tensor_parallel, overlap=False),
    "sequence": sequence_parallel,
    "sequence, inputs kept": partial(sequence_parallel, again=False),
    "sequence, chunks": partial(sequence_parallel, chunks=3),
    "sequence, plain": partial(sequence_parallel, overlap=False),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_two_gpus_equal_one(transform):
    comparison = compare(
        Recipe(transform=transform), workers=2, layout={"tp": 2}, config=CONFIG, steps=3,
        sequences=5, micro_batches=2, device="cuda",
    )  # fmt: skip
    assert comparison, comparison


@pytest.mark.parametrize("transform", ["tensor", "sequence"])
def test_with_data_parallel(transform):
    if GPUS < 4:
        pytest.skip("needs four CUDA devices")
    comparison = compare(
        Recipe(transform=TRANSFORMS[transform], owner=Replicated), workers=4,
        layout={"dp": 2, "tp": 2}, config=CONFIG, steps=3, sequences=3, device="cuda",
    )  # fmt: skip
    assert comparison, comparison


@pytest.mark.parametrize("sequence", [False, True])
def test_dtensor_on_two_gpus(sequence):
    config = GPTConfig(vocab=32, context=12, width=32, layers=2, heads=4)
    comparison = compare(
        partial(DTensorParallel, sequence=sequence), workers=2, layout={"tp": 2}, config=config,
        steps=3, device="cuda",
    )  # fmt: skip
    assert comparison, comparison


def busy(device, size=4096, times=8):
    """Fill this GPU's queue with tens of milliseconds of work."""
    x = torch.ones(size, size, device=device)
    for _ in range(times):
        x = x @ x / size
    return x


def streams(worker):
    """Start messages behind a long queue, reuse freed memory at once, and wait late."""
    transport, wrong = GroupTransport(), []
    rank, size, device = worker.rank, worker.world_size, worker.device
    for number in range(20):
        if number % size == rank:
            busy(device)  # this rank's messages start late
        shard = torch.full((2, 64, 256), float(rank + number), device=device)
        whole = gathered(shard, transport)
        every = torch.full((2, 64 * size, 256), float(number), device=device)
        parts = sum_scattered(every, transport)
        total = summed(torch.full((2, 64, 256), float(rank), device=device), transport)
        del shard, every
        for _ in range(8):  # takes the memory of what nobody holds any longer
            torch.full((2, 64 * size, 256), -1.0, device=device)
        expected = torch.arange(size, device=device) + float(number)
        seen = whole.wait().unflatten(1, (size, 64))[0, :, 0, 0]
        wrong.append((seen != expected).sum())
        wrong.append((parts.wait() != number * size).sum())
        wrong.append((total.wait() != sum(range(size))).sum())
    return int(torch.stack(wrong).sum())


def test_results_are_complete_after_wait_and_no_sooner_reused():
    assert list(launch(streams, 2, device="cuda")) == [0, 0]


def step_beside_a_queue(worker, transform):
    """Loss after some steps, while one rank's GPU is kept late."""
    mesh = make_mesh(Layout(tp=worker.world_size), worker.device)
    trainer = Recipe(transform=transform)(
        CONFIG, 0, mesh, dtype=torch.float64, device=worker.device
    )
    losses = []
    for number in range(6):
        if number % worker.world_size == worker.rank:
            busy(worker.device)
        losses.append(trainer.step(random_batch(number, 4, 12, CONFIG.vocab)).loss.item())
    return losses


@pytest.mark.parametrize("name", ["tensor", "sequence", "sequence, chunks"])
def test_a_late_gpu_changes_no_number(name):
    runs = launch(step_beside_a_queue, 2, device="cuda", transform=TRANSFORMS[name])
    plain = launch(step_beside_a_queue, 2, device="cuda", transform=TRANSFORMS["tensor, plain"])
    for run, other in zip(runs, plain, strict=True):
        assert run == pytest.approx(other, abs=1e-12)


def counted(worker, transform):
    """The calls of a forward and backward, and NCCL's kernels on the trace."""
    mesh = make_mesh(Layout(tp=worker.world_size), worker.device)
    trainer = Recipe(transform=transform)(CONFIG, 0, mesh, device=worker.device)
    batch = random_batch(0, 2, 12, CONFIG.vocab).to(worker.device)

    def step():
        loss, count = trainer.model.loss(batch)
        (loss / count).backward()

    step()
    with ledger() as log:
        step()
    with trace() as found:
        step()
    calls = {row["call"]: row["calls"] for row in log.rows()}
    kernels = [span.name for span in found.of("communication")]
    return {"calls": calls, "kernels": kernels, "hidden": found.hidden()}


def test_nccl_reduces_and_scatters_itself():
    """The embedding, 2 blocks and the head: 5 reduce-scatters and 5 gathers each way.

    The backward gathers the inputs of 5 layers again.
    """
    for run in launch(counted, 2, device="cuda", transform=TRANSFORMS["sequence"]):
        assert "all_to_all" not in run["calls"]
        assert run["calls"]["reduce_scatter"] == 10
        assert run["calls"]["all_gather"] == 15
        assert sum("ReduceScatter" in name for name in run["kernels"]) == 10
        assert 0 <= run["hidden"] <= 1
    for run in launch(counted, 2, device="cuda", transform=tensor_parallel):
        assert set(run["calls"]) == {"all_reduce"}
        assert sum("AllReduce" in name for name in run["kernels"]) == run["calls"]["all_reduce"]
