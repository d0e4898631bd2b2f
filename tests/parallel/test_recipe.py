"""A recipe by itself: its mesh, its micro-batches, and what it refuses."""

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.models.gpt import GPTConfig
from helpers.parallel import recipe
from helpers.parallel.recipe import Recipe, plain
from helpers.plans.schedules import gpipe, one_f_one_b
from helpers.runtime.launch import launch
from helpers.state.placing import Seat

TINY = GPTConfig(vocab=16, context=4, width=8, layers=1, heads=2)
SEAT = Seat(Layout(spare=2), 1)


def made(worker):
    """What the trainers of each recipe got from the call."""
    layout = Layout(dp=worker.world_size)
    mesh = make_mesh(layout)
    for own in (Recipe(), Recipe(layout=layout)):
        trainer = own(TINY, 3, mesh, micro_batches=5, dtype=torch.float64)
        assert trainer.mesh is mesh
        assert trainer.micro_batches == 5
        other = own(TINY, 4, mesh, micro_batches=5, dtype=torch.float64)
        name, value = next(iter(trainer.parameters.items()))
        assert value.dtype is torch.float64
        assert not torch.equal(value, other.parameters[name])
    assert own(TINY).mesh.layout == layout


def test_the_call_s_arguments_reach_the_trainer():
    launch(made, 1, device="cpu")


def test_a_layout_makes_its_mesh_where_the_ranks_are():
    with pytest.raises(RuntimeError, match="there are no ranks"):
        Recipe(layout=SEAT.layout)(TINY)
    assert Recipe()(TINY).mesh is None


@pytest.mark.parametrize("sizes", [{"dp": 2}, {"spare": 4}])
def test_a_mesh_of_another_layout_is_refused(sizes):
    with pytest.raises(ValueError, match=r"the recipe is for Layout\(.*\), not Layout\(spare=2\)"):
        Recipe(layout=Layout(**sizes))(TINY, 0, SEAT)


@pytest.mark.parametrize("schedule", [one_f_one_b, gpipe(2, 3)], ids=["function", "data"])
def test_a_schedule_needs_a_layout_with_a_pipeline(schedule):
    with pytest.raises(ValueError, match="a schedule needs a layout with an axis pp"):
        Recipe(schedule=schedule)
    with pytest.raises(ValueError, match="has no pipeline for a schedule"):
        Recipe(schedule=schedule, layout=SEAT.layout)(TINY, 0, SEAT)


def test_a_layout_s_mesh_is_made_for_the_call_s_device(monkeypatch):
    made, two = [], Seat(Layout(dp=2), 0)
    monkeypatch.setattr(recipe, "make_mesh", lambda *given: made.append(given) or two)
    monkeypatch.setattr(recipe, "Trainer", lambda _, config, seed, mesh, **options: mesh)
    for options in ({}, {"device": "cuda"}):
        assert Recipe(layout=two.layout)(TINY, **options) is two
    assert made == [(two.layout, "cpu"), (two.layout, "cuda")]


def test_its_name():
    assert Recipe(name="mine").__name__ == "mine"
    assert Recipe().__name__ == "Recipe"


def test_micro_batches_are_the_call_s_or_the_schedule_s(monkeypatch):
    monkeypatch.setattr(recipe, "Trainer", lambda *seams, **options: options)
    two = Seat(Layout(pp=2), 0)
    data = Recipe(layout=two.layout, schedule=gpipe(2, 6))
    assert data(TINY, 0, two, device="cuda") == {"micro_batches": 6, "device": "cuda"}
    function = Recipe(layout=two.layout, schedule=gpipe)
    assert function(TINY, 0, two, micro_batches=3) == {"micro_batches": 3}
    assert Recipe()(TINY) == {}


class Line:
    """A config that records how its model is built."""

    def build(self, *arguments, **options):
        self.given = arguments, options
        return torch.nn.Linear(3, 2, device="meta")


def test_the_plain_transform_builds_the_whole_model_of_the_seed_without_memory():
    config = Line()
    model, parts = plain(config, 5, SEAT, torch.float16)
    assert config.given == ((torch.float16, "meta"), {"seed": 5})
    assert isinstance(model, torch.nn.Linear)
    assert {name: (p.name, p.shape, p.local_shape) for name, p in parts.items()} == {
        "weight": ("weight", (2, 3), (2, 3)),
        "bias": ("bias", (2,), (2,)),
    }
