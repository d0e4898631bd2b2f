"""Accelerate's FSDP plugin makes PyTorch's FSDP2 where there are GPUs."""

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.accelerate_deepspeed import fully_shard_by_accelerate
from helpers.parallel.libraries.loss import Loss
from helpers.runtime.launch import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def prepare(worker) -> bool:
    config = GPTConfig(vocab=33, context=8, width=20, layers=2, heads=2)
    module = Loss(config.build(torch.float32, worker.device, seed=0))
    prepared, _ = fully_shard_by_accelerate(module, torch.optim.SGD(module.parameters(), lr=0.1))
    return isinstance(prepared, FSDPModule)


def test_it_is_fsdp():
    assert all(launch(prepare, torch.cuda.device_count(), device="cuda"))
