"""The step's order, and each seam on its own, compared with one process."""

import os
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import SharedTransport
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.local_steps import LocalSteps
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.offload.delay import delayed
from helpers.parallel.offload.disk import on_disk
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import EmulatedFp8, Mixed, Plain
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.plusplus import ZeroPlusPlus
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.precision.scaling import LossScale
from helpers.runtime.launch import launch
from helpers.training.twin import compare
from tests.cuda import Reads

pytestmark = pytest.mark.usefixtures("kept_ranks")

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)
EXACT = Mixed(low=torch.float64)  # no rounding, so any difference is an error in bookkeeping


@pytest.mark.parametrize("precision", [Plain(), EXACT, Mixed(torch.float16, LossScale())])
def test_a_step_reads_from_its_device_once(monkeypatch, precision):
    """Before the update, so that a GPU makes the update while the next step begins here."""
    trainer = Recipe(precision=precision)(TINY)
    update, before = trainer.owner.update, []
    batch, count = random_batch(0, 3, 8, 32), 24
    monkeypatch.setattr(type(batch), "counted", lambda _: count)  # it is on the CPU
    monkeypatch.setattr(trainer.owner, "update", lambda *_: before.append(list(reads.shapes)))
    with Reads() as reads:
        step = trainer.step(batch)
    assert (reads.shapes, before) == ([(2,)], [[(2,)]])  # the norm and the number of targets
    assert (step.tokens, type(step.tokens), step.skipped) == (count, int, False)
    update(OptimizerConfig(), None)


def twin(recipe, **changes):
    return compare(recipe, **{"config": TINY, "steps": 4, "seed": 3, "device": "cpu", **changes})


def poisoned(worker, precision, bad):
    """Three steps. If `bad`, rank 0's loss is infinite in the second; else there is no second."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    trainer = DataParallel(TINY, 0, mesh, dtype=torch.float64, precision=precision)
    found = []
    for k in range(3):
        if k == 1 and not bad:
            continue
        if k == 1 and worker.rank == 0:
            right = trainer.model.loss
            trainer.model.loss = lambda batch: tuple(v * float("inf") for v in right(batch))  # noqa: B023
        step = trainer.step(random_batch(10 * k + worker.rank, 2, 8, 32), lr=1e-2)
        if k == 1 and worker.rank == 0:
            trainer.model.loss = right
        found.append((step.skipped, bool(step.grad_norm.isfinite())))
    return {"steps": found, "state": trainer.full_state()}


def test_a_skipped_update_changes_nothing_on_any_rank():
    skipped, left_out = (
        launch(poisoned, 2, device="cpu", precision=EXACT, bad=bad) for bad in (True, False)
    )
    for run, expected in zip(skipped, left_out, strict=True):
        assert run["steps"] == [(False, True), (True, False), (False, True)]
        ours, theirs = run["state"], expected["state"]
        for name, value in theirs["model"].items():
            assert torch.equal(ours["model"][name], value)
        for name, slots in theirs["optimizer"].items():
            assert slots.keys() == ours["optimizer"][name].keys()
            assert all(torch.equal(ours["optimizer"][name][key], v) for key, v in slots.items())


def test_one_format_skips_nothing_so_that_the_loss_shows_it():
    (run, _) = launch(poisoned, 2, device="cpu", precision=None, bad=True)
    assert [skipped for skipped, _ in run["steps"]] == [False] * 3
    assert not any(value.isfinite().all() for value in run["state"]["model"].values())


def test_master_copies_collect_what_bf16_loses():
    """Each step is so small that a bf16 parameter would lose it."""
    rule = OptimizerConfig(lr=1e-5, weight_decay=0.0)
    trainers = {
        "bf16": Single(TINY, 0, dtype=torch.bfloat16, optimizer=rule),
        "masters": Recipe(precision=Mixed())(TINY, 0, optimizer=rule),
    }
    moved = {}
    for name, trainer in trainers.items():
        first = trainer.full_state()["model"]["blocks.0.mlp.up.weight"].float()
        batch = random_batch(0, 2, 8, 32)
        for _ in range(20):
            trainer.step(batch)
        last = trainer.full_state()["model"]["blocks.0.mlp.up.weight"].float()
        moved[name] = (last - first).abs().median().item()
    assert moved["bf16"] == 0
    assert moved["masters"] == pytest.approx(20e-5, rel=0.2)


def test_evaluation_drops_nothing_and_leaves_training_on():
    config = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2, dropout=0.5)
    batch = random_batch(0, 4, 8, 32, ignored=0.2)
    trainer, plain = Single(config), Single(TINY)
    assert trainer.evaluate(batch) == plain.evaluate(batch)
    assert trainer.model.training
    assert trainer.step(batch).loss != plain.step(batch).loss


def test_the_rate_of_a_step_is_of_that_step_alone():
    trainer = Single(TINY, optimizer=OptimizerConfig(lr=1e-2))
    batch = random_batch(0, 2, 8, 32)
    trainer.step(batch, lr=0.5)
    before = trainer.full_state()["model"]
    trainer.step(batch, lr=0.0)
    assert all(torch.equal(p, before[name]) for name, p in trainer.full_state()["model"].items())
    trainer.step(batch)
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {1e-2}
    with pytest.raises(ValueError, match="micro_batches must be a whole number, 1 or"):
        Single(TINY, micro_batches=0)


SCALED = Mixed(torch.float64, scale=LossScale(scale=8.0, interval=2))


def test_the_scale_follows_the_steps_and_a_checkpoint_has_it():
    trainer, again = (Recipe(precision=SCALED)(TINY, 0, dtype=torch.float64) for _ in range(2))
    right, scales = trainer.model.loss, []
    for k in range(4):
        if k == 2:
            trainer.model.loss = lambda batch: tuple(v * float("inf") for v in right(batch))
        step = trainer.step(random_batch(k, 2, 8, 32))
        trainer.model.loss = right
        scales.append((step.skipped, trainer.precision.loss_scale))
    assert scales == [(False, 8), (False, 16), (True, 8), (False, 8)]
    again.load(trainer.full_state())
    assert again.precision.loss_scale == 8
    assert again.precision.state() == trainer.precision.state()
    again.load(Single(TINY, dtype=torch.float64).full_state())  # without a scale
    again.step(random_batch(4, 2, 8, 32))
    assert again.precision.loss_scale == 16  # two good steps in a row, one of them before the load
    assert trainer.precision.loss_scale == 8  # each trainer has its own
    assert (SCALED.scale.scale, SCALED.scale.good_steps) == (8, 0)


class Prepared(Mixed):
    def prepare(self, model):
        model.prepared = next(model.parameters()).device.type


def test_a_precision_prepares_the_model_before_it_has_memory_and_a_load_reaches_it():
    trainer, other = (Recipe(precision=Prepared())(TINY, seed) for seed in (0, 1))
    assert trainer.model.prepared == "meta"
    trainer.load(other.full_state())
    for name, p in trainer.parameters.items():
        assert torch.equal(p, other.parameters[name])


def test_dropout_goes_by_the_seed():
    config, batch = replace(TINY, dropout=0.5), random_batch(0, 4, 8, 32)
    first, same, other = (Single(config, seed) for seed in (1, 1, 2))
    other.load(first.full_state())
    losses = [float(trainer.step(batch).loss) for trainer in (first, same, other)]
    assert losses[0] == losses[1] != losses[2]


class Resting(Local):
    """A lossy owner that counts its rests."""

    lossy, bound, rests = "on purpose", 0.3, 0

    def rest(self):
        self.rests += 1


def test_an_evaluation_ends_with_a_rest_and_the_bound_is_the_largest():
    trainer = Recipe(owner=Resting, precision=Mixed())(TINY, 0)
    trainer.owner.rests = 0
    trainer.evaluate(random_batch(0, 2, 8, 32))
    assert trainer.owner.rests == 1
    assert trainer.bound == 0.3
    assert trainer.lossy == "it computes in torch.bfloat16, and on purpose"
    assert Recipe(precision=EmulatedFp8())(TINY, 0).bound > 0.3


SHARED = {"transport": SharedTransport}
CLOSED = {
    "replicas": partial(LocalSteps, every=1, **SHARED),
    **{owner.__name__: partial(owner, **SHARED) for owner in (Zero1, Zero2, Zero3)},
    "nodes": partial(ZeroPlusPlus, inside=SharedTransport, between=SharedTransport),
    "late": delayed(partial(Zero1, **SHARED)),
    "on disk": on_disk(partial(Zero1, **SHARED), folder="files", block=4096),
}


def closed(worker, folder):
    """What each trainer leaves: threads and descriptors, or the hooks of its modules."""
    torch.set_num_threads(1)
    os.chdir(folder)
    mesh, left = make_mesh(Layout(node=1, dp=worker.world_size)), {}
    opened = lambda: (threading.active_count(), len(os.listdir("/proc/self/fd")))  # noqa: E731
    for name, owner in CLOSED.items():
        seams = {"transform": partial(plain, data=("node", "dp")), "precision": EXACT}
        before = opened()
        trainer = Recipe(owner=owner, **seams)(TINY, 0, mesh)
        trainer.step(random_batch(worker.rank, 2, 8, 32))
        trainer.close()
        hooks = sum(len(module._forward_pre_hooks) for module in trainer.model.modules())
        if (opened(), hooks) != (before, 0):
            left[name] = before, opened(), hooks
    return left


def test_a_closed_trainer_leaves_nothing_open(tmp_path):
    assert list(launch(closed, 2, device="cpu", folder=tmp_path)) == [{}, {}]
