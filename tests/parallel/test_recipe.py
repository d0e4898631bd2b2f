"""A recipe fills its seams by its layout, makes its mesh, and passes the call's arguments on."""

from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.models.gpt import GPTConfig
from helpers.parallel import trainer
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.pipeline.engine import Pipeline
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.parallel.trainer import Recipe
from helpers.plans.schedules import gpipe, one_f_one_b
from helpers.plans.schedules.zero_bubble import zero_bubble_v
from helpers.runtime.launch import launch
from helpers.state.placing import Seat

TINY = GPTConfig(vocab=16, context=4, width=8, layers=1, heads=2)


@pytest.fixture
def filled(monkeypatch):
    """What a recipe would train with: (the recipe with all seams, the options)."""
    monkeypatch.setattr(
        trainer, "Trainer", lambda recipe, config, seed, mesh, **options: (recipe, options)
    )

    def call(sizes, schedule=None, m=None, **seams):
        layout = Layout(**sizes)
        recipe = Recipe(layout=layout, schedule=schedule, **seams)
        return recipe(TINY, 0, Seat(layout, 0), **({"micro_batches": m} if m else {}))

    return call


FILLED = [
    ({"dp": 1}, "plain InTurn Local"),
    ({"dp": 1, "tp": 1}, "plain InTurn Local"),
    ({"dp": 2}, "plain InTurn Replicated"),
    ({"tp": 2, "pp": 1}, "tensor_parallel InTurn Local"),
    ({"pp": 2, "dp": 2}, "pipeline Pipeline Replicated"),
    ({"ep": 2, "dp": 1}, "expert_parallel InTurn Replicated"),
    ({"pp": 2, "ep": 2, "cp": 2}, "pipeline Pipeline Replicated"),
]


@pytest.mark.parametrize(("sizes", "names"), FILLED)
def test_a_layout_fills_the_seams_that_are_not_named(filled, sizes, names):
    made, options = filled(sizes, m=4)
    seams = (made.transform, made.engine, made.owner)
    assert [getattr(seam, "func", seam).__name__ for seam in seams] == names.split()
    assert options == {"micro_batches": 4}


def test_transforms_of_five_axes_are_nested(filled):
    transform = filled({"dp": 1, "cp": 2, "tp": 2, "ep": 2, "pp": 2})[0].transform
    names = []
    while transform:
        names.append(transform.func.__name__)
        transform = transform.keywords.get("inner")
    assert names == ["pipeline", "expert_parallel", "context_parallel", "tensor_parallel"]


def test_a_seam_that_is_named_stays(filled):
    owner, engine = partial(Replicated, bucket_cap_mb=1), partial(Pipeline)
    made, _ = filled(
        {"pp": 2, "tp": 2}, owner=owner, engine=engine, transform=sequence_parallel, m=2
    )
    assert (made.owner, made.engine) == (owner, engine)
    assert made.transform.keywords["inner"] is sequence_parallel


@pytest.mark.parametrize(
    ("schedule", "m", "expected"),
    [
        (None, 3, one_f_one_b(2, 3)),
        (None, None, one_f_one_b(2, 1)),
        (gpipe, 3, gpipe(2, 3)),
        (gpipe(2, 6), None, gpipe(2, 6)),
    ],
)
def test_the_schedule_and_the_micro_batches(filled, schedule, m, expected):
    made, options = filled({"pp": 2}, schedule, m)
    assert made.transform.keywords["schedule"] == expected
    assert options == {"micro_batches": expected.micro_batches}


@pytest.mark.parametrize("schedule", [one_f_one_b, zero_bubble_v])
def test_hand_written_backwards_are_left_out_where_a_backward_is_split(filled, schedule):
    made, _ = filled({"pp": 2, "tp": 2}, schedule, 2)
    assert made.transform.keywords["inner"].keywords == {"overlap": schedule is one_f_one_b}
    assert filled({"tp": 2})[0].transform.keywords == {"overlap": True}


@pytest.mark.parametrize("schedule", [one_f_one_b, gpipe(2, 3)], ids=["function", "data"])
@pytest.mark.parametrize("sizes", [{"dp": 2}, {"pp": 1, "dp": 2}], ids=str)
def test_a_schedule_needs_a_layout_with_a_pipeline(filled, sizes, schedule):
    with pytest.raises(ValueError, match="a schedule needs a layout with an axis pp"):
        Recipe(schedule=schedule)
    with pytest.raises(ValueError, match="has no pipeline for a schedule"):
        filled(sizes, schedule, 2)


def test_cuts_need_a_layout_with_a_pipeline_and_reach_it(filled):
    for cuts in ((3, 1), ()):
        with pytest.raises(ValueError, match="and so do cuts"):
            Recipe(cuts=cuts)
        with pytest.raises(ValueError, match="has no pipeline for a schedule or cuts"):
            filled({"dp": 2}, cuts=cuts)
    made, _ = filled({"pp": 2}, m=2, cuts=(3, 1))
    assert made.transform.keywords["cuts"] == (3, 1)


def test_a_mesh_of_another_layout_is_refused():
    with pytest.raises(ValueError, match=r"the recipe is for Layout\(.*\), not Layout\(spare=2\)"):
        Recipe(layout=Layout(dp=2))(TINY, 0, Seat(Layout(spare=2), 1))
    with pytest.raises(RuntimeError, match="there are no ranks"):
        Recipe(layout=Layout(spare=2))(TINY)


def test_a_layout_s_mesh_is_made_for_the_call_s_device(monkeypatch):
    made, two = [], Seat(Layout(dp=2), 0)
    monkeypatch.setattr(trainer, "make_mesh", lambda *given: made.append(given) or two)
    monkeypatch.setattr(trainer, "Trainer", lambda _, config, seed, mesh, **options: mesh)
    for options in ({}, {"device": "cuda"}):
        assert Recipe(layout=two.layout)(TINY, **options) is two
    assert made == [(two.layout, "cpu"), (two.layout, "cuda")]
    assert Recipe()(TINY) is None
    assert (Recipe(name="mine").__name__, Recipe().__name__) == ("mine", "Recipe")


def made(worker):
    """What the trainers of each recipe got from the call."""
    layout = Layout(dp=worker.world_size)
    mesh = make_mesh(layout)
    for own in (Recipe(), Recipe(layout=layout)):
        trained = own(TINY, 3, mesh, micro_batches=5, dtype=torch.float64)
        assert trained.mesh is mesh
        assert trained.micro_batches == 5
        other = own(TINY, 4, mesh, micro_batches=5, dtype=torch.float64)
        name, value = next(iter(trained.parameters.items()))
        assert value.dtype is torch.float64
        assert not torch.equal(value, other.parameters[name])
    assert own(TINY).mesh.layout == layout


def test_the_call_s_arguments_reach_the_trainer():
    launch(made, 1, device="cpu")
