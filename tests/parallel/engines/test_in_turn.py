"""What an owner hears of a step on one process: in order, once, and after a failure as before."""

from dataclasses import replace

import pytest
import torch

from helpers.data.batch import IGNORED, random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import Mixed
from helpers.parallel.recipe import Recipe, plain
from helpers.parallel.sums import GlobalSum
from helpers.precision.scaling import LossScale

TINY = GPTConfig(vocab=16, context=4, width=8, layers=2, heads=2)
BATCH = random_batch(0, 6, 4, 16)


class Told(Local):
    """Record the calls of the engine; `fails` names the unit before whose backward to fail."""

    wants = frozenset({"units", "gradients"})

    def __init__(self, *arguments, **seams):
        self.log, self.fails = [], ""
        super().__init__(*arguments, **seams)

    def before(self, unit):
        self.log.append(("before", unit.name))
        if self.fails == unit.name and ("after", "norm") in self.log:
            raise ZeroDivisionError

    def after(self, unit):
        self.log.append(("after", unit.name))

    def gradient(self, name, last):
        self.log.append((name, last))


def made(config=TINY, **changes):
    return Recipe(owner=Told)(config, 0, dtype=torch.float64, **changes)


def log_of(trainer):
    trainer.owner.log.clear()
    trainer.step(BATCH)
    return list(trainer.owner.log)


def test_only_the_last_micro_batch_completes_a_gradient():
    trainer = made(micro_batches=3)
    log = log_of(trainer)
    for name in trainer.parameters:
        assert [entry for entry in log if entry[0] == name] == [(name, k == 2) for k in range(3)]


def test_the_loss_scale_reaches_the_gradients_and_not_the_loss():
    found = []
    for scale in (1.0, 8.0):
        trainer = made(micro_batches=2)
        trainer.owner.precision = Mixed(torch.float64, LossScale(scale=scale))
        tokens, loss = GlobalSum([], "cpu", BATCH.counted()), GlobalSum([], "cpu")
        trainer.engine.step(BATCH.micro(2), tokens, loss)
        found.append((loss.wait(), {name: p.grad for name, p in trainer.parameters.items()}))
    (plain, gradients), (same, larger) = found
    assert same == plain
    for name, gradient in gradients.items():
        torch.testing.assert_close(larger[name], 8 * gradient, rtol=1e-12, atol=0)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_a_recomputed_forward_belongs_to_the_backward(recompute):
    plain, again = log_of(made()), log_of(made(replace(TINY, recompute=recompute)))
    assert [e for e in again if e[0] in ("before", "after")] == [
        e for e in plain if e[0] in ("before", "after")
    ]


def units_of(log):
    return [entry for entry in log if entry[0] in ("before", "after")]


def test_a_unit_s_backward_ends_without_its_frozen_parameters():
    frozen = "blocks.1.mlp.up.weight"

    def transform(*arguments):
        model, parts = plain(*arguments)
        model.get_parameter(frozen).requires_grad_(False)
        return model, parts

    log = log_of(Recipe(owner=Told, transform=transform)(TINY, 0, dtype=torch.float64))
    assert units_of(log) == units_of(log_of(made()))
    assert (frozen, True) not in log


def test_a_unit_without_one_of_its_gradients_ends_with_the_micro_batch():
    def transform(*arguments):
        model, parts = plain(*arguments)
        mlp = model.blocks["1"].mlp
        mlp.forward = lambda x: mlp.down(mlp.gate(x))  # without `up`
        return model, parts

    trainer = Recipe(owner=Told, transform=transform)(TINY, 0, dtype=torch.float64, micro_batches=2)
    log, whole = units_of(log_of(trainer)), units_of(log_of(made()))
    end = ("after", "blocks.1")
    whole.reverse()
    whole.remove(end)
    assert log == 2 * [*whole[::-1], end]


def test_a_batch_without_targets_has_gradients_of_zero():
    trainer = made()
    trainer.step(replace(BATCH, targets=torch.full_like(BATCH.targets, IGNORED)))
    assert not any(p.grad.any() for p in trainer.parameters.values())


@pytest.mark.parametrize("unit", ["norm", "blocks.1", "blocks.0"])
def test_a_step_that_failed_leaves_nothing_to_the_next(unit):
    trainer = made()
    first = log_of(trainer)
    trainer.owner.fails = unit
    with pytest.raises(ZeroDivisionError):
        log_of(trainer)
    assert ("after", "norm") in trainer.owner.log  # it failed in the backward
    trainer.owner.fails = ""
    assert log_of(trainer) == first


@pytest.mark.parametrize("training", [True, False])
def test_an_evaluation_leaves_the_mode_as_it_was(training):
    trainer = made(replace(TINY, dropout=0.5))
    trainer.model.train(training)
    assert trainer.evaluate(BATCH) == trainer.evaluate(BATCH)
    assert trainer.model.training == training


def test_the_hooks_end_with_the_engine():
    trainer = made()
    trainer.close()
    for module in trainer.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in trainer.model.parameters())
