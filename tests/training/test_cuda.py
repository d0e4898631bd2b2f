"""Training on GPUs: a twin and its ranks on one kind of device, and a farm on all GPUs."""

import pytest
import torch

from helpers.training.farm import farm
from helpers.training.twin import compare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def data_parallel():
    from helpers.parallel.ddp.strategy import DataParallel

    return DataParallel


def test_one_rank_equals_its_twin_on_the_same_gpu():
    """float64 on the GPU, with the same kernels on both sides."""
    comparison = compare(data_parallel(), workers=1, steps=5)
    assert comparison, comparison
    assert comparison.worst("parameter") < 1e-12


def test_more_ranks_than_gpus_are_compared_on_the_cpu_both():
    comparison = compare(data_parallel(), workers=torch.cuda.device_count() + 1, steps=3)
    assert comparison, comparison


def test_data_parallel_on_all_gpus():
    gpus = torch.cuda.device_count()
    if gpus < 2:
        pytest.skip("needs two GPUs")
    comparison = compare(data_parallel(), workers=gpus, steps=5, sequences=2 * gpus + 1)
    assert comparison, comparison


def name_of_gpu(worker, task):
    x = torch.ones(8, device=worker.device)
    return task, str(worker.device), x.sum().item()


def test_the_farm_uses_every_gpu():
    gpus = torch.cuda.device_count()
    found = farm(name_of_gpu, list(range(4 * gpus)), workers=2 * gpus)
    assert [task for task, _, _ in found] == list(range(4 * gpus))
    assert {device for _, device, _ in found} <= {f"cuda:{k}" for k in range(gpus)}
    assert all(total == 8.0 for _, _, total in found)
