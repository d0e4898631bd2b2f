"""Stage 1, and the step that all stages share: its order, its memory, and what a failure leaves."""

import contextlib
import threading
from collections import Counter
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.transport import SharedTransport
from helpers.data.batch import random_batch
from helpers.parallel.precision import Mixed, Plain
from helpers.parallel.recipe import Recipe, plain
from helpers.parallel.zero.film import filming
from helpers.parallel.zero.stage1 import Zero1, sharded_together
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules import one_f_one_b
from helpers.runtime.launch import launch
from helpers.state.part import Part
from tests.parallel.zero.beside import (
    BEGUN,
    GPT2,
    ODD,
    PADDED,
    PUBLISHED,
    UNTIED,
    UPDATED,
    Case,
    apart,
    far,
    frozen,
    lines,
    told,
)

pytestmark = [
    pytest.mark.usefixtures("kept_ranks"),
    pytest.mark.filterwarnings("ignore:ZeRO stage"),
]
EXACT = Mixed(low=torch.float64)  # no rounding, so any difference is an error in bookkeeping


def test_it_equals_one_process():
    """Rows with padding; frozen parameters, master copies and a rank without data."""
    part, recipe = frozen("attention", "norm"), partial(Recipe, owner=Zero1)
    cases = {
        "padding": Case(recipe(), PADDED, micro_batches=2, sequences=7),
        "frozen": Case(
            recipe(transform=part, precision=EXACT), GPT2, alone=Recipe(transform=part), sequences=2
        ),
    }
    for run in launch(far, 3, device="cpu", cases=cases):
        assert {name: value for name, value in run.items() if not value <= 1e-12} == {}


def test_a_pipeline_s_stages_sum_what_they_share():
    """A tied embedding is on both stages: its gradient is a sum over dp here, and over pp there."""
    layout = {"pp": 2, "dp": 2}
    recipe = Recipe(owner=Zero1, layout=Layout(**layout), schedule=one_f_one_b)
    case = Case(recipe, ODD, layout=layout, micro_batches=2)
    for run in launch(far, 4, device="cpu", cases={"tied": case}):
        assert run["tied"] <= 1e-12


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


def memory(worker, precision):
    """Bytes that the owner holds after a step; those of a film at its end, and at its start."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    trainer = Recipe(owner=Zero1, precision=precision, transform=frozen("attention."))(
        UNTIED, 0, mesh
    )
    trainer.step(random_batch(worker.rank, 2, 8, 33))
    with filming(trainer.owner) as opened:
        pass
    assert {e["state"] for e in opened.events} == {"held"}
    with filming(trainer.owner) as film:
        trainer.step(random_batch(worker.rank, 2, 8, 33))
    assert all(p.grad is None for p in trainer.parameters.values())  # no sum, or only a part of it
    held = {kind: nbytes for (kind, _), nbytes in trainer.held().items()}
    return held, last_bytes(film), last_bytes(opened)


def last_bytes(film) -> dict[str, int]:
    """The bytes of all units at the end of a film, by kind."""
    found = Counter({e["kind"]: 0 for e in film.events})
    for (_, kind), nbytes in {(e["unit"], e["kind"]): e["bytes"] for e in film.events}.items():
        found[kind] += nbytes
    return dict(found)


@pytest.mark.parametrize("precision", [Plain(), Mixed()], ids=["fp32", "mixed"])
def test_what_is_divided_adds_up_over_the_ranks(precision):
    """1980 trained numbers in 8 parameters, and 576 frozen ones, which every rank holds."""
    mixed, ranks = isinstance(precision, Mixed), 3
    held, filmed, opened = zip(
        *launch(memory, ranks, device="cpu", precision=precision), strict=True
    )
    assert opened == filmed  # a film opens with what a step leaves
    size = 2 if mixed else 4
    moments = 8 * 1980 + ranks * 8 * 4  # AdamW counts its steps for each parameter, in 4 bytes
    wide = {"master copies": 4 * 1980 + ranks * 4 * 576} if mixed else {}
    assert added(held) == wide | {
        "parameters": ranks * size * 2556,
        "gradients": ranks * size * 1980 + 4 * 1980 * mixed,
        "optimizer": moments,
    }
    wide = {"master copies": 4 * 1980} if mixed else {}  # the film is of the rows
    assert added(filmed) == wide | {
        "parameters": ranks * size * 1980,
        "gradients": ranks * size * 1980,
        "gradient shard": 4 * 1980 * mixed,  # else it is a part of the gradients
        "optimizer": moments,
    }


def added(ranks) -> dict[str, int]:
    return {kind: sum(run.get(kind, 0) for run in ranks) for kind in ranks[0]}


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
    found = list(sharded_together(model, parts, Layout(pp=2, dp=2)))
    assert {unit for unit, _ in found} == {"ends"}
    return sorted(sorted(name.removeprefix("ends.") for name in names) for _, names in found)


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
    model, parts = plain(config, seed, seat, dtype)
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
    return model, parts


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


def test_a_step_that_failed_leaves_nothing_to_the_next():
    """Gathered units, gradients and messages under way belong to the step that failed."""
    for run in launch(after_failures, 2, device="cpu", owners=[Zero1, Zero2, Zero3]):
        for distance, (first, *later) in run:
            assert distance < 1e-12
            assert later == [first, first]  # a unit that is used is waited for


def closed(worker, owners):
    torch.set_num_threads(1)
    mesh, threads = make_mesh(Layout(dp=worker.world_size)), threading.active_count()
    for owner in owners:
        trainer = Recipe(owner=partial(owner, transport=SharedTransport))(ODD, 0, mesh)
        trainer.step(random_batch(worker.rank, 2, 8, ODD.vocab))
        trainer.close()
    return threading.active_count() - threads


def test_a_closed_owner_leaves_no_thread_behind():
    assert list(launch(closed, 2, device="cpu", owners=[Zero1, Zero2, Zero3])) == [0, 0]
