"""Mistakes planted in every pass: the first departure is named, with the right guess."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.pipeline.engine import Pipeline
from helpers.parallel.pipeline.stages import pipeline
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.plans.schedules.zero_bubble import zero_bubble_v
from helpers.training.locate import PASSES, Location, locate, off, part_of
from helpers.training.twin import compare
from helpers.training.witness import Witness

pytestmark = pytest.mark.usefixtures("kept_ranks")

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


def located(strategy, **changes):
    settings = {"config": TINY, "steps": 3, "device": "cpu", "sequences": 5, "locate": True}
    comparison = compare(strategy, workers=2, **settings | changes)
    assert not comparison
    assert str(comparison.location) in repr(comparison)
    return comparison.location


def bent(config, seed, seat, dtype, name, hook, rank):
    """The plain transform; on one rank a hook changes the output of one module."""
    placed = plain(config, seed, seat, dtype)
    model = placed.model
    if seat.rank == rank:
        model.get_submodule(name).register_forward_hook(hook)
    return placed


def half(module, inputs, output):
    return output / 2


def doubled_backward(module, inputs, output):
    output.register_hook(lambda gradient: 2 * gradient)


def test_a_module_s_output():
    for axis in ("dp", "tp"):
        transform = partial(bent, name="blocks.1.mlp", hook=half, rank=1)
        recipe = (
            Recipe(transform=transform, owner=Replicated)
            if axis == "dp"
            else Recipe(transform=transform)
        )
        where = located(recipe, layout={axis: 2})
        assert (where.kind, where.name, where.rank, where.step) == ("forward", "blocks.1.mlp", 1, 0)
        assert f"half the twin's. Is a sum over {axis} missing" in where.guess


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_gradient_of_a_module_s_output(micro_batches):
    transform = partial(bent, name="blocks.0.attention", hook=doubled_backward, rank=0)
    where = located(Recipe(transform=transform, owner=Replicated), micro_batches=micro_batches)
    assert (where.kind, where.name, where.rank) == ("backward", "blocks.0.attention", 0)
    assert "2 times the twin's. Is it summed over dp twice" in where.guess


def bent_stages(config, seed, mesh, dtype, name, hook):
    """The stages of ZB-V on this rank; a hook changes the output of one module."""
    placed = pipeline(config, seed, mesh, dtype, schedule=zero_bubble_v(2, 4))
    model = placed.model
    for stage in model.values():
        for own, module in stage.named_modules():
            if own == name:
                module.register_forward_hook(hook)
    return placed


@pytest.mark.parametrize(
    ("name", "hook", "kind", "rank"),
    [
        ("blocks.2.mlp", half, "forward", 1),  # rank 0 has blocks 0 and 3
        ("blocks.3.attention", doubled_backward, "backward", 0),
    ],
)
def test_the_module_of_a_pipeline(name, hook, kind, rank):
    """Modules of later stages depart too, on the other rank before the own rank's."""
    transform = partial(bent_stages, name=name, hook=hook)
    recipe = Recipe(transform=transform, engine=Pipeline)
    config = replace(TINY, layers=4)
    where = located(recipe, config=config, layout={"pp": 2}, micro_batches=4, steps=1)
    assert (where.kind, where.name, where.rank) == (kind, name, rank)


def test_a_cut_tensor_is_held_against_its_part():
    whole = torch.arange(48.0).view(2, 4, 6)
    layout = Layout(dp=3, tp=2)
    found = part_of(whole, (2, 4, 3), layout, {"dp": 0, "tp": 1})
    assert torch.equal(found, whole[..., 3:])
    found = part_of(whole, (2, 2, 2), layout, {"dp": 2, "tp": 0})
    assert torch.equal(found, whole[:, :2, 4:])
    square = Layout(dp=2, tp=2)  # of two axes of one size, the last one cuts
    assert torch.equal(part_of(whole, (2, 4, 3), square, {"dp": 0, "tp": 1}), whole[..., 3:])
    assert torch.equal(part_of(whole, (2, 2, 6), square, {"dp": 1, "tp": 0}), whole[:, :2])
    assert part_of(whole, (2, 3, 6), layout, {"dp": 0, "tp": 0}) is None
    assert part_of(whole, (2, 24), layout, {"dp": 0, "tp": 0}) is None


def test_a_nan_departs():
    numbers = torch.arange(2)
    twin, seen = (
        Witness(numbers, forward={"a": torch.ones(2, 3), "b": torch.full((2, 3), value)})
        for value in (1.0, float("nan"))
    )
    where = locate(4, Layout(dp=1), twin, [seen], torch.float64)
    assert (where.kind, where.name, where.rank, where.step) == ("forward", "b", 0, 4)
    assert locate(4, Layout(dp=1), twin, [twin], torch.float64) is None


def test_how_far_off():
    assert off(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 4.0])) == 0.25
    assert off(torch.zeros(2), torch.zeros(2)) == 0
    assert off(torch.zeros(0, 3), torch.zeros(0, 3)) == 0  # a rank without sequences
    assert off(torch.ones(2), torch.zeros(2)) == float("inf")
    assert not off(torch.tensor([float("nan")]), torch.ones(1)) <= 1


def record(rows=2, **changes):
    """A step of one rank: modules a, b and c, whose outputs are ones."""
    one = torch.ones(rows, 3, dtype=torch.float64)
    seen = Witness(torch.arange(rows), forward={"a": one, "b": one, "c": one}, loss=2.0)
    for name, value in changes.items():
        setattr(seen, name, value)
    return seen


def with_forward(**changes):
    seen = record()
    return record(forward=seen.forward | {n: f * seen.forward[n] for n, f in changes.items()})


def test_the_earliest_pass_then_the_earliest_module_then_the_lowest_rank():
    def look(*ranks):
        return locate(0, Layout(dp=1, tp=3), record(), ranks, torch.float64)

    late, early = with_forward(c=1.5), with_forward(b=1.25, c=9)
    found = look(late, early, early)
    assert (found.kind, found.name, found.rank, found.off) == ("forward", "b", 1, 0.25)
    assert look(late, record(), late).rank == 0
    early.loss = 3.0
    assert look(early, record(), record()).kind == "forward"
    assert look(record(), record(), record(loss=3.0)).kind == "loss"
    start = record(before={"w": torch.ones(1)}, loss=3.0)
    twin = record(before={"w": torch.zeros(1)})
    assert locate(0, Layout(dp=1), twin, [start], torch.float64).kind == "start"


@pytest.mark.parametrize(
    ("dtype", "agrees", "departs"),
    [
        (torch.float64, 0.9e-9, 1.1e-9),
        (torch.float32, 0.9e-4, 1.1e-4),
        (torch.bfloat16, 0.04, 0.06),
    ],
)
def test_rounding_is_no_departure(dtype, agrees, departs):
    near, far = ([with_forward(b=1 + off)] for off in (agrees, departs))
    assert locate(0, Layout(dp=1), record(), near, dtype) is None
    assert locate(0, Layout(dp=1), record(), far, dtype).name == "b"


def test_a_rank_s_rows_are_those_of_its_sequences():
    rows = torch.arange(6.0).view(6, 1) + torch.zeros(6, 3)
    twin = Witness(torch.arange(6), forward={"a": rows})
    own = Witness(torch.tensor([5, 2]), forward={"a": rows[[5, 2]]})
    assert locate(0, Layout(dp=1), twin, [own], torch.float64) is None
    swapped = Witness(torch.tensor([5, 2]), forward={"a": rows[[2, 5]]})
    assert locate(0, Layout(dp=1), twin, [swapped], torch.float64).name == "a"
    other = Witness(torch.tensor([5, 2]))  # the module is on another rank
    assert locate(0, Layout(dp=1), twin, [other], torch.float64) is None


def test_ranks_with_other_sequences_or_other_columns_do_not_drift_apart():
    """Their outputs differ, as they should: only equal sequences and whole tensors are compared."""
    whole = torch.arange(24.0).view(4, 6) ** 2
    twin = Witness(torch.arange(4), forward={"a": whole})
    odd = torch.tensor([[1.0], [2.0]])  # no multiple
    first = Witness(torch.tensor([0, 1]), forward={"a": whole[:2] * odd})
    second = Witness(torch.tensor([2, 3]), forward={"a": whole[2:]})
    found = locate(0, Layout(dp=2), twin, [first, second], torch.float64)
    assert (found.kind, found.rank, found.guess) == ("forward", 0, "")
    odd = torch.arange(1.0, 5).view(4, 1)
    cut = [whole[:, :3] * odd, whole[:, 3:]]
    ranks = [Witness(torch.arange(4), forward={"a": part}) for part in cut]
    found = locate(0, Layout(tp=2), twin, ranks, torch.float64)
    assert (found.kind, found.rank, found.guess) == ("forward", 0, "")
    ranks = [Witness(torch.arange(4), forward={"a": part}) for part in (whole * odd, whole)]
    found = locate(0, Layout(tp=2), twin, ranks, torch.float64)
    assert "ranks 0 and 1 drift apart: along tp" in found.guess


def test_gradients_that_add_up_to_the_twins_are_said_to_whatever_each_is():
    """A quarter and three quarters: each is a multiple of the twin's too."""
    gradient = torch.tensor([3.0, -1.0, 5.0], dtype=torch.float64)
    ranks = [record(gradients={"w": part * gradient}) for part in (0.25, 0.75)]
    found = locate(0, Layout(dp=2), record(gradients={"w": gradient}), ranks, torch.float64)
    assert (found.kind, found.name, found.rank) == ("gradient", "w", 0)
    assert found.guess.startswith("The ranks' numbers add up to the twin's")


def test_moments_that_are_missing_count_as_zeros_and_other_settings_do_not_count():
    moments = {"w": {"exp_avg": torch.ones(2), "flag": True}}
    assert locate(0, Layout(dp=1), record(optimizer=moments), [record()], torch.float64).name == (
        "w (exp_avg)"
    )
    own = {"w": {"exp_avg": torch.ones(2), "flag": False}}
    twin, seen = record(optimizer=moments), record(optimizer=own)
    assert locate(0, Layout(dp=1), twin, [seen], torch.float64) is None


@pytest.mark.parametrize("kind", PASSES)
def test_a_location_in_words(kind):
    where = Location(step=3, rank=1, kind=kind, name="n", off=0.25, guess="Why?")
    assert str(where).startswith("step 3, rank 1: the ")
    assert str(where).endswith(", by 0.25 of its size. Why?")
    assert str(replace(where, guess="")).endswith("of its size")


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_of_several_hints_the_more_specific_one_counts(kind):
    """A multiple before a missing sum, and a missing sum before a drift."""
    whole = torch.arange(12.0, dtype=torch.float64).view(2, 6) ** 2
    numbers, odd = torch.arange(2), torch.tensor([[1.0], [3.0]])

    def look(*parts):
        twin, *seen = (Witness(numbers, **{kind: {"a": part}}) for part in (whole, *parts))
        return locate(0, Layout(tp=2), twin, seen, torch.float64).guess

    assert look(0.25 * whole, 0.75 * whole).startswith("It is 0.25 times the twin's")
    assert look(whole - odd, odd + 0 * whole).startswith("The ranks' numbers add up to the twin's")
    assert look(whole - odd, whole).startswith("The ranks 0 and 1 drift apart")


def test_a_gradient_that_a_rank_lacks_is_zero():
    gradients = {"v": torch.ones(2), "w": torch.ones(3)}
    seen = record(gradients={"v": torch.ones(2)})
    found = locate(0, Layout(dp=1), record(gradients=gradients), [seen], torch.float64)
    assert (found.kind, found.name, found.off) == ("gradient", "w", 1.0)
    assert found.guess.startswith("It is zero")
