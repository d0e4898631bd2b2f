"""A second model behind the same seams: owners and libraries train a VAE like one process.

One launch trains all of them, one after the other, on three ranks that share seven pictures. Each
rank also trains the single process, and compares. Absolute tolerance in float64: 1e-12.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.pictures import random_pictures
from helpers.models.vae import VAEConfig
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.libraries.fully_shard import FullyShard
from helpers.parallel.libraries.torch_ddp import TorchDataParallel
from helpers.parallel.recipe import Recipe
from helpers.parallel.single import Single
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch

TINY = VAEConfig(side=4, width=7, layers=2, latent=3)
STRATEGIES = {
    "ours": DataParallel,
    "stage 1": Recipe(owner=Zero1),
    "stage 2": Recipe(owner=Zero2),
    "stage 3": Recipe(owner=Zero3),
    "stage 3, two micro-batches": partial(Recipe(owner=Zero3), micro_batches=2),
    "PyTorch's DDP": TorchDataParallel,
    "FSDP2": FullyShard,
    "FSDP2, two micro-batches": partial(FullyShard, micro_batches=2),
}


def train_all(worker, strategies, config):
    """The largest difference of each strategy from one process, after each of three steps."""
    torch.set_num_threads(1)
    torch.manual_seed(worker.rank)
    mesh, far = make_mesh(Layout(dp=worker.world_size), worker.device), {}
    for name, make in strategies.items():
        twin = Single(config, 3, dtype=torch.float64)
        trained = make(config, 3, mesh, dtype=torch.float64)
        far[name] = 0.0
        for k in range(3):
            batch = replace(random_pictures(k, 7, config.side), step=k)
            ours = trained.step(batch.shard(worker.rank, worker.world_size))
            theirs = twin.step(batch)
            assert ours.tokens == 7
            pairs = [(ours.loss, theirs.loss), (ours.grad_norm, theirs.grad_norm)]
            for one, other in (
                (trained.full_gradients(), twin.full_gradients()),
                (trained.full_state()["model"], twin.full_state()["model"]),
            ):
                assert one.keys() == other.keys()
                pairs += [(one[n], other[n]) for n in other]
            far[name] = max(far[name], *(float((a - b).abs().max()) for a, b in pairs))
        part = random_pictures(9, 7, config.side)
        loss, count = trained.evaluate(part.shard(worker.rank, worker.world_size))
        assert count == 7
        far[name] = max(far[name], abs(loss - twin.evaluate(part)[0]))
        trained.close()
    return far


@pytest.fixture(scope="module")
def differences():
    runs = launch(train_all, 3, device="cpu", strategies=STRATEGIES, config=TINY)
    return {name: max(run[name] for run in runs) for name in STRATEGIES}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_as_one_process(differences, name):
    assert differences[name] < 1e-12
