"""Sharded checkpoints: written by one stage and world, read by another, and no rank is ever whole.

The continued training equals one process that was never interrupted, within 1e-12 in float64.
"""

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from helpers.state import checkpoint
from tests.parallel.beside import ODD, apart


def trainer_of(worker, owner):
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    return mesh, Recipe(owner=owner)(ODD, 0, mesh, dtype=torch.float64)


def step(trained, k):
    batch = random_batch(k, 5, ODD.context, ODD.vocab)
    trained.step(batch.shard(trained.data_rank, trained.data_size))


def write(worker, owner, path):
    mesh, trainer = trainer_of(worker, owner)
    step(trainer, 0)
    masters, state = trainer.owner.masters, trainer.optimizer.state
    kept = {name: state[master] for name, master in masters.items()}
    checkpoint.save(path, mesh, trainer.owner.world.parts, masters, kept)


def read(worker, owner, path):
    mesh, trainer = trainer_of(worker, owner)
    owner = trainer.owner
    with torch.no_grad():
        kept = checkpoint.load(path, mesh, owner.world.parts, owner.masters)
    for name, slots in kept.items():
        trainer.optimizer.state[owner.masters[name]] = slots
    trainer.spread()
    step(trainer, 1)
    one = Single(ODD, 0, dtype=torch.float64)
    step(one, 0)
    step(one, 1)
    return apart(trainer.full_state()["model"], one.full_state()["model"])


@pytest.mark.parametrize(("writer", "reader"), [(Zero3, Zero1), (Zero2, Zero3)])
def test_another_stage_on_another_world_continues(tmp_path, writer, reader):
    launch(write, 2, device="cpu", owner=writer, path=str(tmp_path / "saved"))
    runs = launch(read, 3, device="cpu", owner=reader, path=str(tmp_path / "saved"))
    assert max(runs) < 1e-12
