"""Latent attention trains like one process: data parallel, ZeRO, and a pipeline.

Two ranks share seven sequences. Each rank also trains the single process, and compares. Absolute
tolerance in float64: 1e-12.
"""

from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.config import GPTConfig
from helpers.models.latent_config import Latent
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.recipe import Recipe
from helpers.parallel.single import Single
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch

SHAPE = {"vocab": 29, "context": 8, "width": 12, "layers": 2, "heads": 2}
WIDTHS = Latent(kv_rank=5, query_rank=7, nope=3, rope=4, value=5)
CONFIG = GPTConfig(**SHAPE, mixer="latent", latent=WIDTHS, recompute="selective")
STRATEGIES = {
    "data parallel": DataParallel,
    "stage 1": Recipe(owner=Zero1),
    "stage 3, two micro-batches": partial(Recipe(owner=Zero3), micro_batches=2),
    "pipeline": partial(Recipe(layout=Layout(pp=2)), micro_batches=2),
}


def train_all(worker, strategies, config):
    """The largest difference of each strategy from one process, over three steps."""
    torch.set_num_threads(1)
    far = {}
    for name, make in strategies.items():
        pipeline = name == "pipeline"
        layout = Layout(pp=2) if pipeline else Layout(dp=worker.world_size)
        twin = Single(config, 3, dtype=torch.float64)
        trained = make(config, 3, make_mesh(layout, worker.device), dtype=torch.float64)
        far[name] = 0.0
        for k in range(3):
            batch = random_batch(k, 7, 8, config.vocab, ignored=0.2)
            share = batch if pipeline else batch.shard(worker.rank, worker.world_size)
            pairs = [(trained.step(share).loss, twin.step(batch).loss)]
            for one, other in (
                (trained.full_gradients(), twin.full_gradients()),
                (trained.full_state()["model"], twin.full_state()["model"]),
            ):
                assert one.keys() == other.keys()
                pairs += [(one[n], other[n]) for n in other]
            far[name] = max(far[name], *(float((a - b).abs().max()) for a, b in pairs))
        trained.close()
    return far


@pytest.fixture(scope="module")
def differences():
    runs = launch(train_all, 2, device="cpu", strategies=STRATEGIES, config=CONFIG)
    return {name: max(run[name] for run in runs) for name in STRATEGIES}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_as_one_process(differences, name):
    assert differences[name] < 1e-12
