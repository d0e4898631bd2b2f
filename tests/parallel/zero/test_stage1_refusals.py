"""What ZeRO refuses, with its reason: before any message, or at the step."""

from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.parallel.ddp.replicas import UnusedParameters
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.elementwise import NotElementWise
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from helpers.state.placing import Seat
from tests.parallel.zero.beside import UNTIED

pytestmark = pytest.mark.usefixtures("kept_ranks")


def unused(config, seed, seat, dtype):
    placed = plain(config, seed, seat, dtype)
    model = placed.model
    for block in model.blocks.values():
        block.forward = lambda x, *_, **__: x
    return placed


def sparse(config, seed, seat, dtype):
    placed = plain(config, seed, seat, dtype)
    model = placed.model
    model.embedding.sparse = True
    return placed


def failing(worker, cases):
    """The error of each case, by name."""
    torch.set_num_threads(1)
    mesh, found = make_mesh(Layout(dp=worker.world_size)), {}
    batch = random_batch(worker.rank, 2, 8, 33)
    for name, (recipe, change) in cases.items():
        trainer = recipe(UNTIED, 0, mesh)
        try:
            change(trainer)
            trainer.step(batch)
        except Exception as error:
            found[name] = type(error).__name__, str(error)
        torch.distributed.barrier()
    return found


def nothing(trainer):
    pass


def in_place(trainer):
    with torch.no_grad():
        next(iter(trainer.parameters.values())).mul_(2)


def by_another_storage(trainer):
    p = trainer.parameters["norm.weight"]
    p.data = torch.ones_like(p)


def unused_later(trainer):
    trainer.step(random_batch(0, 2, 8, 33))
    for block in trainer.model.blocks.values():
        block.forward = lambda x, *_, **__: x


def test_steps_that_would_be_wrong_are_refused():
    cases = {}
    for name, owner in {"1": Zero1, "2": Zero2, "3": Zero3}.items():
        recipe = partial(Recipe, owner=owner)
        cases[name, "unused"] = recipe(transform=unused), nothing
        cases[name, "unused later"] = recipe(), unused_later
        cases[name, "sparse"] = recipe(transform=sparse), nothing
        cases[name, "written"] = recipe(), in_place
        cases[name, "replaced"] = recipe(), by_another_storage
    for rank, run in enumerate(launch(failing, 2, device="cpu", cases=cases)):
        for name in "123":
            for when in ("unused", "unused later"):
                kind, text = run[name, when]
                assert kind == UnusedParameters.__name__
                assert f"no gradient on rank {rank} for blocks.0.attention_norm.weight, " in text
                assert "blocks.0.mlp.up.weight and 1 more. If the loss leaves them" in text
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


def test_it_needs_ranks():
    with pytest.raises(ValueError, match="ZeRO shards over ranks: make a mesh"):
        Zero1(UNTIED.build(device="meta"), {}, None, rule=OptimizerConfig())


def test_an_owner_tries_its_rule_before_it_makes_a_group():
    rule = OptimizerConfig(rule=torch.optim.Adafactor)
    with pytest.raises(NotElementWise, match="Adafactor updates a matrix by more than"):
        Recipe(owner=Zero3)(UNTIED, 0, Seat(Layout(dp=2), 0), optimizer=rule)
