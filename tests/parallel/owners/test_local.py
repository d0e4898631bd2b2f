"""The plain owner on one process: its update, its state, its bytes."""

import pytest
import torch

from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import Local, by_device
from helpers.parallel.precision import Mixed, Plain
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.world import ALONE

TINY = GPTConfig(vocab=16, context=4, width=8, layers=1, heads=2)
BATCH = random_batch(0, 4, 4, 16)
SGD = OptimizerConfig(rule="sgd", lr=7.0, momentum=0.0, weight_decay=0.0)


def made(rule=SGD, precision=None, dtype=torch.float64):
    return Recipe(precision=precision or Plain())(TINY, 0, dtype=dtype, optimizer=rule)


@pytest.mark.parametrize(("factor", "times"), [(None, 1), (1.0, 1), (0.5, 0.5), (0.999, 0.999)])
def test_an_update_has_the_rate_and_the_factor(factor, times):
    owner = made().owner
    before = {name: p.detach().clone() for name, p in owner.parameters.items()}
    for p in owner.parameters.values():
        p.grad = torch.ones_like(p)
    rule = OptimizerConfig(rule="sgd", lr=0.1)
    owner.update(rule, None if factor is None else torch.tensor(factor, dtype=torch.float64))
    for name, p in owner.parameters.items():
        torch.testing.assert_close(p.detach(), before[name] - 0.1 * times, rtol=0, atol=1e-15)


def test_a_loaded_state_replaces_all_of_the_optimizer_s():
    fresh, used = (made(OptimizerConfig()) for _ in range(2))
    first = fresh.full_state()
    assert first["optimizer"] == {}
    used.step(BATCH)
    assert used.full_state()["optimizer"].keys() == used.parameters.keys()
    used.load(first)
    for trainer in (fresh, used):
        trainer.step(BATCH)
    for name, value in fresh.full_state()["model"].items():
        assert torch.equal(used.full_state()["model"][name], value)


def test_master_copies_are_bytes_only_if_they_are_copies():
    count = sum(p.numel() for p in made().parameters.values())
    assert made(dtype=torch.float32).held() == {("parameters", "cpu"): 4 * count}
    held = made(precision=Mixed(), dtype=torch.float32).held()
    assert held == {("parameters", "cpu"): 2 * count, ("master copies", "cpu"): 4 * count}


def test_bytes_by_device():
    here, there = torch.zeros(3), torch.zeros(5, device="meta")
    kinds = {"a": [here, there, here[1:]], "b": [{"m": here, "step": 3}], "c": [None],
             "d": [torch.zeros(0)]}  # fmt: skip
    assert by_device(kinds) == {("a", "cpu"): 12, ("a", "meta"): 20, ("b", "cpu"): 12}


def test_a_new_step_begins_without_any_gradient():
    owner = made(precision=Mixed(), dtype=torch.float32).owner
    owner.values = {name: p.detach().clone() for name, p in owner.parameters.items()}  # as shards
    every = [*owner.parameters.values(), *owner.values.values(), *owner.masters.values()]
    for tensor in every:
        tensor.grad = torch.ones_like(tensor)
    owner.begin()
    assert all(tensor.grad is None for tensor in every)
    assert owner.gradients() == {}


def test_gradients_that_are_missing_are_left_out():
    owner = made().owner
    first, *_ = owner.masters.values()
    first.grad = torch.ones_like(first)
    [(name, gradient)] = owner.gradients().items()
    assert owner.masters[name] is first
    assert gradient is first.grad


def test_the_optimizer_has_what_is_trained_and_nothing_to_train_is_said():
    def freezing(names):
        def transform(*arguments):
            placed = plain(*arguments)
            model = placed.model
            for name, p in model.named_parameters():
                p.requires_grad_(name not in names)
            return placed

        return Recipe(transform=transform)(TINY, 0)

    names = list(made().parameters)
    groups = freezing(names[:-1]).optimizer.param_groups
    [[last]] = [group["params"] for group in groups]
    assert last.shape == made().parameters[names[-1]].shape
    with pytest.raises(ValueError, match="nothing to train"):
        freezing(names)


def test_master_copies_have_the_training_s_dtype_and_the_model_its_device():
    owner = made(precision=Mixed(), dtype=torch.float64).owner
    assert {p.dtype for p in owner.parameters.values()} == {torch.bfloat16}
    assert {m.dtype for m in owner.masters.values()} == {torch.float64}
    rule = OptimizerConfig(rule=torch.optim.SGD)
    seams = {"rule": rule, "precision": Plain(), "dtype": torch.float32, "device": "meta"}
    owner = Local(*plain(TINY, 0, ALONE, torch.float32), None, **seams)
    assert {p.device.type for p in owner.parameters.values()} == {"meta"}
