"""Stage 1, and the step that all stages share: its order, its memory, and what a failure leaves."""

import contextlib
from collections import Counter
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.zero.film import filming
from helpers.parallel.zero.stage1 import Zero1, sharded_together
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from helpers.state.part import Part
from tests.parallel.beside import ODD, apart
from tests.parallel.zero.beside import BEGUN, PUBLISHED, UPDATED, lines, told

pytestmark = [
    pytest.mark.usefixtures("kept_ranks"),
    pytest.mark.filterwarnings("ignore:ZeRO stage"),
]

BACKWARD = """
    head gradients filling; norm gradients filling; blocks.0 gradients filling
    embedding gradients filling
    head gradients filling; head gradients sending; > scatter 396
    norm gradients filling; norm gradients sending; > scatter 12
    blocks.0 gradients filling; blocks.0 gradients sending; > scatter 1752; < scatter 396
    embedding gradients filling; embedding gradients sending; > scatter 396; < scatter 12
    < scatter 1752; < scatter 396
"""


def test_a_row_is_sent_during_the_last_backward_and_two_may_fly():
    for first, step, evaluation in launch(told, 3, device="cpu", owner=Zero1, micro_batches=2):
        assert first == step == BEGUN + lines(BACKWARD) + UPDATED + PUBLISHED
        assert evaluation == []


def test_with_none_in_flight_each_row_is_waited_for():
    sent = """> scatter 396; < scatter 396; > scatter 12; < scatter 12
              > scatter 1752; < scatter 1752; > scatter 396; < scatter 396"""
    for _, step, _ in launch(told, 3, device="cpu", owner=partial(Zero1, in_flight=0)):
        assert [line for line in step if "scatter" in line] == lines(sent)


def rows_of(dtype=torch.float32, **stages) -> list[list[str]]:
    """The rows of one unit with these parameters, each on so many stages of a pipeline."""
    model = torch.nn.Module()
    model.ends = torch.nn.ParameterDict({name: torch.zeros(3) for name in stages})
    model.ends["frozen"].requires_grad_(False)
    model.ends["other"].data = torch.zeros(3, dtype=dtype)
    parts = {
        f"ends.{name}": Part(name=name, shape=(3,), holders=range(2 * several))
        for name, several in stages.items()
    }
    found = list(sharded_together(model, parts, dict.fromkeys(parts, (0, 1))))
    assert {(unit, ranks) for unit, _, ranks in found} == {("ends", (0, 1))}
    return sorted(sorted(name.removeprefix("ends.") for name in names) for _, names, _ in found)


def test_a_tensor_that_stages_share_is_alone_in_its_row():
    """Else the row, and so the shards, would differ between the first and the last stage."""
    once = {"own": 1, "frozen": 1, "other": 1}
    assert rows_of(**once, tied=2) == [["frozen"], ["other", "own"], ["tied"]]
    assert rows_of(**once, tied=1) == [["frozen"], ["other", "own", "tied"]]
    assert rows_of(**once, dtype=torch.float64) == [["frozen"], ["other"], ["own"]]


class Planted(RuntimeError):
    """In a forward or in a backward."""


def fragile(config, seed, seat, dtype):
    """`model.fails` names where a step fails: in a block's forward, or inside its backward."""
    placed = plain(config, seed, seat, dtype)
    model = placed.model
    mlp, model.fails = model.blocks["0"].mlp, ""
    forward = mlp.forward

    def fail(*_):
        raise Planted

    def sometimes(x):
        y = forward(x)
        if model.fails == "forward":
            fail()
        if model.fails == "backward":
            y.register_hook(fail)
        return y

    mlp.forward = sometimes
    return placed


def after_failures(worker, owners):
    """(How far from the plain owner, uses of each unit in each step that did not fail) of each."""
    torch.set_num_threads(1)
    mesh, given = make_mesh(Layout(dp=worker.world_size)), {"dtype": torch.float64}
    recipes = [Recipe(transform=fragile), *(Recipe(transform=fragile, owner=o) for o in owners)]
    plain_one, *trainers = [recipe(ODD, 0, mesh, micro_batches=2, **given) for recipe in recipes]
    uses = [[] for _ in trainers]
    for k, fails in enumerate(["forward", "backward", ""]):
        batch = random_batch(k, 6, ODD.context, ODD.vocab)
        batch = batch.shard(plain_one.data_rank, plain_one.data_size)
        plain_one.step(batch)
        for trainer, own in zip(trainers, uses, strict=True):
            with filming(trainer.owner) as film:
                trainer.step(batch)
            own.append(Counter(e["unit"] for e in film.events if e["state"] == "in use"))
            trainer.model.fails = fails
            if fails:
                with contextlib.suppress(Planted):
                    trainer.step(batch)
                    raise AssertionError("the step did not fail")
            trainer.model.fails = ""
    wanted = plain_one.full_state()["model"]
    states = [trainer.full_state()["model"] for trainer in trainers]
    return [(apart(state, wanted), own) for state, own in zip(states, uses, strict=True)]


def after_failures_of_replicas(worker):
    """How far from replicas that have not failed, in each step once."""
    torch.set_num_threads(1)
    recipe = Recipe(transform=fragile, owner=partial(Replicated, bucket_cap_mb=1e-3))
    mesh = make_mesh(Layout(dp=worker.world_size))
    failed, other = (recipe(ODD, 0, mesh, dtype=torch.float64) for _ in range(2))
    for k in range(3):
        batch = random_batch(k, 6, ODD.context, ODD.vocab).shard(worker.rank, worker.world_size)
        failed.model.fails = "backward"
        with pytest.raises(Planted):
            failed.step(batch)
        failed.model.fails = ""
        for one in (failed, other):
            one.step(batch)
    return apart(failed.full_state()["model"], other.full_state()["model"])


def test_replicas_go_on_after_a_backward_that_failed():
    assert [*launch(after_failures_of_replicas, 2, device="cpu")] == [0, 0]


def test_a_step_that_failed_leaves_nothing_to_the_next():
    """Gathered units, gradients and messages under way belong to the step that failed."""
    for run in launch(after_failures, 2, device="cpu", owners=[Zero1, Zero2, Zero3]):
        for distance, (first, *later) in run:
            assert distance < 1e-12
            assert later == [first, first]  # a unit that is used is waited for
