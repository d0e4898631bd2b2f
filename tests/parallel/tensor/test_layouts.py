"""Evaluate, and go on training on another layout: tp 2, then dp 2, then one process."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.recipe import Recipe
from helpers.parallel.single import Single
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")

CONFIG = GPTConfig(vocab=33, context=8, width=24, layers=2, heads=6, kv_heads=2, dropout=0.1)
TRANSFORMS = {
    "tensor": tensor_parallel,
    "sequence": partial(sequence_parallel, chunks=2),
}


def batch(k):
    return replace(random_batch(k, 4, 8, CONFIG.vocab, ignored=0.2), step=k)


def journey(worker, transform):
    """Two steps on each layout, each loaded from the one before; losses, and the last state."""
    torch.set_num_threads(1)
    layouts = [
        (Recipe(transform=transform), {"tp": 2}),
        (Recipe(owner=Replicated), {"dp": 2}),
        (Recipe(transform=transform), {"tp": 2}),
    ]
    state, losses, k = None, [], 0
    for recipe, layout in layouts:
        trained = recipe(CONFIG, 0, make_mesh(Layout(**layout)), dtype=torch.float64)
        if state:
            trained.load(state)
        for _ in range(2):
            mine = batch(k).shard(trained.data_rank, trained.data_size)
            losses.append(trained.step(mine).loss.item())
            k += 1
        loss, count = trained.evaluate(batch(100).shard(trained.data_rank, trained.data_size))
        losses.append(loss / count)
        state = trained.full_state()
        trained.close()
    return {"losses": losses, "state": state}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_training_goes_on_where_another_layout_stopped(transform):
    runs = launch(journey, 2, device="cpu", transform=transform)
    twin = Single(CONFIG, 0, dtype=torch.float64)
    losses = []
    for k in range(6):
        losses.append(twin.step(batch(k)).loss.item())
        if k % 2:
            loss, count = twin.evaluate(batch(100))
            losses.append(loss / count)
    expected, following = twin.full_state(), twin.step(batch(6)).loss.item()
    for run in runs:
        assert run["losses"] == pytest.approx(losses, abs=1e-12)
        for name, value in expected["model"].items():
            torch.testing.assert_close(run["state"]["model"][name], value, rtol=0, atol=1e-12)
        fresh = Single(CONFIG, 0, dtype=torch.float64)
        fresh.load(run["state"])  # and on to one process
        assert fresh.step(batch(6)).loss.item() == pytest.approx(following, abs=1e-12)
