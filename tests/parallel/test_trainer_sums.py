"""A trainer sums targets and losses along the axes that its transform names."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.runtime.launch import launch

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


def summed(sums, loss_sums, take, *arguments):
    """Ranks of tp count as having other targets, other losses, or both."""
    return replace(plain(*arguments), sums=sums, loss_sums=loss_sums, take=take)


def twice(batch):
    return batch.rows([0, 1, 2, 0, 1, 2])


def same(batch):
    return batch


def summed_by(worker, cases):
    """(loss, tokens, gradient norm) of a step, and an evaluation, of each case."""
    mesh, batch, found = (
        make_mesh(Layout(tp=worker.world_size)),
        random_batch(0, 3, 8, 32),
        [],
    )
    for case in cases:
        recipe = Recipe(transform=partial(summed, *case))
        trainer = recipe(TINY, 0, mesh, dtype=torch.float64)
        evaluation, step = trainer.evaluate(batch), trainer.step(batch)
        found.append((float(step.loss), step.tokens, float(step.grad_norm), *evaluation))
    return found


def test_targets_losses_and_gradients_are_summed_along_the_transform_s_own_axes():
    """Three ranks with the same batch: so a sum over them is three times as much."""
    tp = ("tp",)
    cases = [((), (), same), ((), tp, same), (tp, tp, same), ((), (), twice)]
    batch = random_batch(0, 3, 8, 32)
    alone = Single(TINY, dtype=torch.float64)
    total, count = alone.evaluate(batch)
    step = alone.step(batch)
    loss, norm = float(step.loss), float(step.grad_norm)
    expected = [
        (loss, count, norm, total, count),
        (3 * loss, count, norm, 3 * total, 3 * count),
        (loss, 3 * count, norm, 3 * total, 3 * count),
        (loss, 2 * count, norm, 2 * total, 2 * count),  # what `take` takes
    ]
    for found in launch(summed_by, 3, device="cpu", cases=cases):
        for ours, theirs in zip(found, expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-12)
