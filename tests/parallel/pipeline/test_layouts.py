"""A model moves between layouts; recipes fill their seams; other precisions and owners."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import Local
from helpers.parallel.pipeline.engine import Pipeline
from helpers.parallel.pipeline.stages import pipeline
from helpers.parallel.precision import Mixed
from helpers.parallel.recipe import Recipe
from helpers.parallel.single import Single
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.parallel.units import units
from helpers.plans.schedules import gpipe, one_f_one_b
from helpers.plans.schedules.interleaved import interleaved
from helpers.plans.schedules.zero_bubble import zero_bubble_v
from helpers.runtime.cluster import Cluster
from helpers.state.placing import Seat
from helpers.state.shares import shares
from helpers.training.twin import compare

CONFIG = GPTConfig(vocab=33, context=12, width=24, layers=4, heads=4, dropout=0.1)
RULE = OptimizerConfig(clip=0.5)
STEPS = 2


@pytest.fixture(scope="module")
def eight():
    with Cluster(workers=8, device="cpu") as cluster:
        yield cluster


def go_on(worker, recipe, state, first):
    """Load a state, train on, and return the new state."""
    torch.set_num_threads(1)
    trainer = recipe(
        CONFIG, 0, make_mesh(recipe.layout), dtype=torch.float64, optimizer=RULE, micro_batches=4
    )
    if state is not None:
        trainer.load(state)
    for k in range(first, first + STEPS):
        batch = replace(random_batch(k, 8, 12, 33), step=k)
        trainer.step(batch.shard(trainer.data_rank, trainer.data_size))
    saved = trainer.full_state()
    trainer.close()
    return saved if worker.rank == worker.world_size - 1 else None


WAY = [
    Recipe(layout=Layout(pp=2, dp=2, tp=2), schedule=one_f_one_b),
    Recipe(layout=Layout(dp=2, pp=4), schedule=gpipe),
    Recipe(layout=Layout(tp=4, pp=2), schedule=zero_bubble_v, transform=sequence_parallel),
    Recipe(layout=Layout(dp=8)),
    Recipe(layout=Layout(dp=4, pp=2), schedule=partial(interleaved, chunks=2)),
]


def test_a_model_moves_from_layout_to_layout(eight):
    """Two steps on each, with the moments; one process makes all steps. Tolerance 1e-12."""
    state = None
    for number, recipe in enumerate(WAY):
        state = eight.run(go_on, recipe=recipe, state=state, first=number * STEPS)[-1]
    torch.set_num_threads(1)
    twin = Single(CONFIG, dtype=torch.float64, optimizer=RULE)
    for k in range(len(WAY) * STEPS):
        twin.step(replace(random_batch(k, 8, 12, 33), step=k))
    plain = twin.full_state()
    assert state["model"].keys() == plain["model"].keys()
    for name, value in plain["model"].items():
        torch.testing.assert_close(state["model"][name], value, rtol=0, atol=1e-12)
    for name, slots in plain["optimizer"].items():
        for slot, value in slots.items():
            torch.testing.assert_close(state["optimizer"][name][slot], value, rtol=0, atol=1e-12)


def test_bf16_stays_within_its_bound():
    recipe = Recipe(
        layout=Layout(pp=2), schedule=one_f_one_b, precision=Mixed(), name="bf16 pipeline"
    )
    comparison = compare(
        recipe,
        config=CONFIG,
        micro_batches=4,
        steps=5,
        dtype=torch.float32,
        optimizer=OptimizerConfig(eps=1e-4),
        device="cpu",
    )
    assert len(comparison.ranks) == 2  # as many as the layout has
    assert comparison, comparison
    assert "bfloat16" in comparison.lossy


def test_the_stages_are_cut_by_cost():
    """The head costs as much as several layers. Every block has one home; a tied matrix has two."""
    config, blocks = replace(CONFIG, vocab=1000), {}
    for rank in range(4):
        seat = Seat(Layout(pp=2, dp=2), rank)
        model, parts = pipeline(config, 0, seat, torch.float32, schedule=one_f_one_b(2, 2))
        for part in parts.values():
            blocks.setdefault(part.name, set()).add(part.holders)
        (stage,) = model.values()
        assert list(stage.blocks) == (["0", "1", "2"] if rank < 2 else ["3"])
    assert blocks.pop("embedding.weight") == {(0, 1, 2, 3)}
    assert blocks.pop("blocks.2.mlp.up.weight") == {(0, 1)}
    assert blocks.pop("norm.weight") == {(2, 3)}
    assert all(len(homes) == 1 for homes in blocks.values())
    shown = shares([{p.name: p for p in parts.values()}], "blocks.3.mlp.up.weight")
    assert shown.rows() == [(0, ":, :")]


class Diary(Local):
    """Record each call of the engine."""

    wants = frozenset({"units", "gradients"})

    def __init__(self, *arguments, **seams):
        self.log = []
        super().__init__(*arguments, **seams)

    def before(self, unit):
        self.log.append(("before", unit.name))

    def after(self, unit):
        self.log.append(("after", unit.name))

    def gradient(self, name, last):
        self.log.append(("gradient", name, last))


def called(worker, schedule):
    torch.set_num_threads(1)
    recipe = Recipe(layout=Layout(pp=2, tp=2, spare=2), schedule=schedule, owner=Diary)
    trainer = recipe(CONFIG, micro_batches=4)
    for training in (False, True):  # an evaluation leaves the mode as it was
        trainer.model.train(training)
        trainer.evaluate(random_batch(0, 4, 12, 33))
        assert trainer.model.training == training
    trainer.owner.log.clear()
    trainer.step(random_batch(0, 4, 12, 33))
    return {
        "log": trainer.owner.log,
        "units": [unit.name for unit in units(trainer.model)],
        "trained": list(trainer.owner.parameters),
        "engine": isinstance(trainer.engine, Pipeline),
    }


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [(one_f_one_b, 1), (partial(interleaved, chunks=2), 2), (zero_bubble_v, 2)],
)
def test_an_owner_hears_of_each_unit_and_each_gradient(eight, schedule, stages):
    for run in eight.run(called, schedule=schedule):
        assert run["engine"]
        assert len({name.split(".")[0] for name in run["units"]}) == stages
        gradients = [entry[1:] for entry in run["log"] if entry[0] == "gradient"]
        shared = stages == 2 and schedule is zero_bubble_v and "0.embedding.weight"
        for name in run["trained"]:
            reports = [last for own, last in gradients if own == name]
            assert len(reports) == (
                8 if name == shared and "3.norm.weight" in run["trained"] else 4
            )
            assert reports == [False] * (len(reports) - 1) + [True]
        open_units, seen = set(), set()
        for call, name, *_ in run["log"]:
            if call == "before":
                assert name not in open_units
                open_units.add(name)
            elif call == "after":
                open_units.remove(name)
                seen.add(name)
            elif name != shared:  # a gradient belongs to a unit that is running
                assert any(name.startswith(f"{unit}.") for unit in open_units)
        assert not open_units
        assert seen == set(run["units"])
        if not shared:  # each micro-batch's forward, and its backward
            calls = Counter(entry[1] for entry in run["log"] if entry[0] == "before")
            assert calls == Counter(dict.fromkeys(run["units"], 8))
