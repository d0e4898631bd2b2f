"""A trainer sums targets and losses along the axes that its engine names."""

from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.engines.in_turn import InTurn
from helpers.parallel.recipe import Recipe
from helpers.runtime.launch import launch

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


class Counted(InTurn):
    """Ranks of tp count as having other targets, other losses, or both."""

    def __init__(self, sums, loss_sums, *seams):
        self.sums, self.loss_sums = sums, loss_sums
        super().__init__(*seams)


def summed_by(worker, along):
    """(loss, tokens, gradient norm) of a step, and an evaluation, with sums along these axes."""
    mesh, batch = make_mesh(Layout(tp=worker.world_size)), random_batch(0, 3, 8, 32)
    found = []
    for axes in along:
        recipe = Recipe(engine=partial(Counted, *axes))
        trainer = recipe(TINY, 0, mesh, dtype=torch.float64)
        evaluation, step = trainer.evaluate(batch), trainer.step(batch)
        found.append((float(step.loss), step.tokens, float(step.grad_norm), *evaluation))
    return found


def test_targets_and_losses_are_summed_along_the_engine_s_own_axes():
    """Three ranks with the same batch: so a sum over them is three times as much."""
    none, here = (), ("dp", "tp")  # the mesh has no dp
    along = [(none, none), (none, here), (here, none)]
    for plain, losses, targets in launch(summed_by, 3, device="cpu", along=along):
        loss, tokens, norm, total, count = plain
        exact = partial(pytest.approx, rel=1e-12)
        assert plain == (exact(total / count), count, norm, total, count)
        assert losses == (exact(3 * loss), tokens, exact(norm), exact(3 * total), 3 * count)
        assert targets == (exact(loss / 3), 3 * tokens, exact(norm / 3), total, count)
