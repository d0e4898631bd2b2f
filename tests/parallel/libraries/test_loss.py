"""The loss of all ranks' batches, in evaluation mode."""

import pytest
import torch

from helpers.comm.transport import GroupTransport
from helpers.data.batch import random_batch
from helpers.models.gpt import GPT, GPTConfig
from helpers.parallel.libraries.loss import Loss, global_loss
from helpers.runtime.launch import launch

DROPS = GPTConfig(vocab=16, context=4, width=8, layers=1, heads=2, dropout=0.5)
BATCH = random_batch(0, 5, 4, 16, ignored=0.3)


def evaluated(worker):
    torch.manual_seed(0)
    module = Loss(GPT(DROPS, dtype=torch.float64))
    own = BATCH.shard(worker.rank, worker.world_size)
    found = [global_loss(module, module, own, GroupTransport()) for _ in range(2)]
    assert module.training
    with pytest.raises(ZeroDivisionError):
        global_loss(module, lambda batch: 1 / 0, own, GroupTransport())
    assert module.training
    module.eval()
    return found, *(float(value) for value in module(BATCH))


def test_it_is_summed_over_the_ranks_and_drops_nothing():
    for found, total, count in launch(evaluated, 2, device="cpu"):
        for loss, targets in found:
            assert loss == pytest.approx(total, rel=1e-12)
            assert targets == count == BATCH.counted()
