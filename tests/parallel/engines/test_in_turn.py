"""What an owner hears of a step on one process: in order, once, and after a failure as before."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.engines.in_turn import Watched
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import Mixed
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.units import units
from helpers.parallel.world import GlobalSum
from helpers.precision.scaling import LossScale

TINY = GPTConfig(vocab=16, context=4, width=8, layers=2, heads=2)
BATCH = random_batch(0, 6, 4, 16)


class Told(Local):
    """Record the calls of the engine; `fails` names the unit before whose backward to fail."""

    wants = frozenset({"units", "gradients"})

    def __init__(self, *arguments, **seams):
        self.log, self.fails = [], ""
        super().__init__(*arguments, **seams)

    def begin(self):
        self.log.append(("begin",))
        super().begin()

    def complete(self):
        self.log.append(("complete",))
        super().complete()

    def update(self, rule, factor):
        self.log.append(("update", rule.lr))
        super().update(rule, factor)

    def publish(self):
        self.log.append(("publish",))

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


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_order_of_a_step(micro_batches):
    trainer = made(micro_batches=micro_batches)
    trainer.owner.log.clear()
    trainer.step(BATCH, lr=0.25)
    log, order = list(trainer.owner.log), ["embedding", "blocks.0", "blocks.1", "norm"]  # tied
    assert log[0] == ("begin",)
    assert log[-3:] == [("complete",), ("update", 0.25), ("publish",)]
    forward = [(what, name) for name in order for what in ("before", "after")]
    told = units_of(log)
    backward = told[len(forward) : len(told) // micro_batches]
    assert told[: len(forward)] == forward
    assert sorted(backward) == sorted(forward)
    assert [name for what, name in backward if what == "after"] == order[::-1]
    for unit in order:  # after a unit's backward, all of its gradients are complete
        end = max(place for place, entry in enumerate(log) if entry == ("after", unit))
        assert not any(entry[0].startswith(f"{unit}.") for entry in log[end:])
    trainer.owner.log.clear()
    trainer.evaluate(BATCH)
    assert trainer.owner.log == forward


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
        placed = plain(*arguments)
        model = placed.model
        model.get_parameter(frozen).requires_grad_(False)
        return placed

    log = log_of(Recipe(owner=Told, transform=transform)(TINY, 0, dtype=torch.float64))
    assert units_of(log) == units_of(log_of(made()))
    assert (frozen, True) not in log


def test_a_unit_without_one_of_its_gradients_ends_with_the_micro_batch():
    def transform(*arguments):
        placed = plain(*arguments)
        model = placed.model
        mlp = model.blocks["1"].mlp
        mlp.forward = lambda x: mlp.down(mlp.gate(x))  # without `up`
        return placed

    trainer = Recipe(owner=Told, transform=transform)(TINY, 0, dtype=torch.float64, micro_batches=2)
    log, whole = units_of(log_of(trainer)), units_of(log_of(made()))
    end = ("after", "blocks.1")
    whole.reverse()
    whole.remove(end)
    assert log == 2 * [*whole[::-1], end]


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
def test_an_evaluation_that_failed_leaves_the_mode_as_it_was(training):
    trainer = made()
    trainer.model.train(training)
    with pytest.raises(IndexError):
        trainer.evaluate(replace(BATCH, targets=BATCH.targets + TINY.vocab))
    assert all(module.training == training for module in trainer.model.modules())


def test_the_hooks_end_with_the_engine():
    trainer = made()
    trainer.close()
    for module in trainer.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in trainer.model.parameters())


def test_an_owner_that_wants_nothing_hears_nothing():
    trainer = Recipe()(TINY, 0)
    assert trainer.engine.watched == trainer.engine.hooks == []
    assert not any(module._forward_pre_hooks for module in trainer.model.modules())


class Threefold:
    """The transport of three ranks with the same loss; it notes which gradients are there."""

    def __init__(self, parameters):
        self.parameters, self.there = parameters, []

    def all_reduce(self, buffer):
        self.there.append(sum(p.grad is not None for p in self.parameters))
        self.buffer = buffer
        return self

    def wait(self):
        self.buffer *= 3


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_loss_is_sent_once_after_the_last_forward(micro_batches):
    trainer = Recipe()(TINY, 0, dtype=torch.float64)
    group = Threefold(trainer.parameters.values())
    tokens, loss = GlobalSum([], "cpu", BATCH.counted()), GlobalSum([group], "cpu")
    trainer.engine.step(BATCH.micro(micro_batches), tokens, loss)
    alone = trainer.evaluate(BATCH)[0]
    assert float(loss.wait()) == pytest.approx(3 * alone, rel=1e-12)
    assert group.there == [0 if micro_batches == 1 else len(trainer.parameters)]


def test_units_that_are_recomputed_together_are_there_before_the_first_of_them():
    """The recomputed forward of the first unit runs in the backward of the second."""
    model, log = torch.nn.Module(), []
    model.first, model.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    owner = SimpleNamespace(
        before=lambda unit: log.append(("before", unit.name)),
        after=lambda unit: log.append(("after", unit.name)),
    )
    watched = [Watched(unit, owner) for unit in units(model)]
    y = checkpoint(lambda x: model.second(model.first(x)), torch.ones(1, 2), use_reentrant=False)
    forward = [(what, name) for name in ("first", "second") for what in ("before", "after")]
    assert log == forward
    log.clear()
    y.sum().backward()
    ends = [(what, name) for what in ("before", "after") for name in ("second", "first")]
    assert log == ends
    for one in watched:
        one.close()
