"""What ZeRO refuses, with its reason: before any message, or at the step."""

from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.replicas import UnusedParameters
from helpers.parallel.optimizer import RULES, OptimizerConfig
from helpers.parallel.recipe import Recipe, plain
from helpers.parallel.zero.elementwise import NotElementWise, refuse_mixing
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from helpers.state.placing import Seat

CONFIG = GPTConfig(vocab=33, context=8, width=12, layers=1, heads=2, tied=False)
ELEMENT_WISE = ("Adadelta", "Adagrad", "Adam", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")


@pytest.mark.parametrize("rule", [*RULES, *ELEMENT_WISE, "ASGD"])
def test_element_wise_optimizers_are_allowed(rule):
    refuse_mixing(OptimizerConfig(rule=rule if rule in RULES else getattr(torch.optim, rule)))


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("Muon", "Muon cannot update them"),
        ("LBFGS", "LBFGS cannot update them"),
        ("Adafactor", "Adafactor updates a matrix by more than"),
        ("SparseAdam", "SparseAdam cannot update them"),
    ],
)
def test_other_optimizers_are_refused(rule, reason):
    if not hasattr(torch.optim, rule):
        pytest.skip(f"this PyTorch has no {rule}")
    with pytest.raises(NotElementWise, match=reason.replace("cannot", ".*cannot")):
        refuse_mixing(OptimizerConfig(rule=getattr(torch.optim, rule)))


class TrustRatio(torch.optim.SGD):
    """Scales each update by the norm of its whole parameter, like LARS."""

    def __init__(self, groups, lr):
        super().__init__(groups, lr=lr)

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(p.detach().norm())
        super().step()


def test_an_optimizer_of_one_s_own_is_tried_too():
    with pytest.raises(NotElementWise, match="TrustRatio updates a matrix by more than"):
        refuse_mixing(OptimizerConfig(rule=TrustRatio))


class LaterTrustRatio(TrustRatio):
    """The first update is plain."""

    updates = 0

    def step(self):
        self.updates += 1
        torch.optim.SGD.step(self) if self.updates == 1 else super().step()


def test_an_optimizer_that_mixes_later_only_is_refused_too():
    with pytest.raises(NotElementWise, match="LaterTrustRatio updates a matrix by more than"):
        refuse_mixing(OptimizerConfig(rule=LaterTrustRatio))


def test_an_owner_tries_its_rule_before_it_makes_a_group():
    rule = OptimizerConfig(rule=torch.optim.Adafactor)
    with pytest.raises(NotElementWise, match="Adafactor updates a matrix by more than"):
        Recipe(owner=Zero3)(CONFIG, 0, Seat(Layout(dp=2), 0), optimizer=rule)


def unused(config, seed, seat, dtype):
    model, parts = plain(config, seed, seat, dtype)
    block = model.blocks["0"].mlp
    block.forward = lambda x: block.down(torch.nn.functional.silu(block.gate(x)))  # without `up`
    return model, parts


def sparse(config, seed, seat, dtype):
    model, parts = plain(config, seed, seat, dtype)
    model.embedding.sparse = True
    return model, parts


def failing(worker, cases):
    """The error of each case, by name."""
    torch.set_num_threads(1)
    mesh, told = make_mesh(Layout(dp=worker.world_size)), {}
    batch = random_batch(worker.rank, 2, 8, 33)
    for name, (recipe, change) in cases.items():
        trainer = recipe(CONFIG, 0, mesh)
        try:
            change(trainer)
            trainer.step(batch)
        except Exception as error:
            told[name] = type(error).__name__, str(error)
        torch.distributed.barrier()
    return told


def nothing(trainer):
    pass


def in_place(trainer):
    with torch.no_grad():
        next(iter(trainer.parameters.values())).mul_(2)


def by_another_storage(trainer):
    p = trainer.parameters["norm.weight"]
    p.data = torch.ones_like(p)


def test_steps_that_would_be_wrong_are_refused():
    recipes = {name: partial(Recipe, owner=owner) for name, owner in
               {"1": Zero1, "2": Zero2, "3": Zero3}.items()}  # fmt: skip
    cases = {}
    for name, recipe in recipes.items():
        cases[name, "unused"] = recipe(transform=unused), nothing
        cases[name, "sparse"] = recipe(transform=sparse), nothing
        cases[name, "written"] = recipe(), in_place
        cases[name, "replaced"] = recipe(), by_another_storage
    for run in launch(failing, 2, device="cpu", cases=cases):
        for name in recipes:
            kind, text = run[name, "unused"]
            assert kind == UnusedParameters.__name__
            assert "blocks.0.mlp.up.weight" in text
            kind, text = run[name, "sparse"]
            assert kind == "NotImplementedError"
            assert "embedding.weight is sparse" in text
            kind, text = run[name, "replaced"]
            assert kind == "RuntimeError"
            assert "norm.weight has changed outside" in text
            kind, text = run[name, "written"]
            refused = "single memory location" if name == "3" else "embedding.weight has changed"
            assert kind == "RuntimeError"
            assert refused in text


def test_it_needs_the_axis_of_data_parallelism():
    with pytest.raises(ValueError, match="ZeRO shards over the axis dp"):
        Recipe(owner=Zero1)(CONFIG)


def warned(worker, owner):
    import warnings

    mesh = make_mesh(Layout(dp=worker.world_size))
    trainer = Recipe(owner=owner)(CONFIG, 0, mesh, micro_batches=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            trainer.step(random_batch(worker.rank, 2, 8, 33))
    return [str(w.message) for w in caught if "ZeRO" in str(w.message)]


def test_a_message_says_once_when_stage_1_is_cheaper():
    first, second = launch(warned, 2, device="cpu", owner=Zero2)
    assert len(first) == 1
    assert "Stage 1 sends them once" in first[0]
    assert second == []
    assert list(launch(warned, 2, device="cpu", owner=Zero1)) == [[], []]
