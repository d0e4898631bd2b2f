"""The plain owner on one process: its update, its state, its bytes."""

import pytest
import torch

from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import Local, by_device
from helpers.parallel.precision import Mixed, Plain
from helpers.parallel.recipe import Recipe, plain
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


class Doubling:
    """A world that doubles all gradients that are there, and makes one that is not."""

    def __init__(self):
        self.asked = []

    def complete(self, own, done):
        self.asked.append((sorted(own), done))
        return {name: 2 * g for name, g in own.items()} | {
            "norm.weight": torch.full((8,), 7.0, dtype=torch.float64)
        }


@pytest.mark.parametrize("precision", [Plain(), Mixed(torch.float64)], ids=["plain", "mixed"])
def test_all_pending_sums_are_made_before_the_gradients_are_used(precision):
    owner = made(precision=precision).owner
    owner.world = Doubling()
    for name, p in owner.parameters.items():
        p.grad = None if name == "norm.weight" else torch.full_like(p, 3.0)
    owner.complete()
    assert owner.world.asked == [(sorted(set(owner.parameters) - {"norm.weight"}), ())]
    for name, gradient in owner.gradients().items():
        assert gradient.unique().tolist() == [7.0 if name == "norm.weight" else 6.0]
    assert owner.gradients().keys() == owner.masters.keys()


def test_the_gradients_of_shards_are_held_too():
    owner = made(dtype=torch.float32).owner
    owner.values = {name: torch.nn.Parameter(p[:2]) for name, p in owner.parameters.items()}
    owner.masters = owner.values
    for tensor in owner.values.values():
        tensor.grad = torch.ones_like(tensor)
    count = sum(value.numel() for value in owner.values.values())
    assert owner.held()["gradients", "cpu"] == 4 * count


def test_the_optimizer_has_what_is_trained_and_nothing_to_train_is_said():
    def freezing(names):
        def transform(*arguments):
            model, parts = plain(*arguments)
            for name, p in model.named_parameters():
                p.requires_grad_(name not in names)
            return model, parts

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
