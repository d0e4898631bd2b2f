"""Plans run: points of a front beside their twins; a planned pipeline and the equal split."""

import itertools

import pytest

from helpers.comm.layout import Layout
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.zero.stage1 import Zero1
from helpers.planner.executed import Layers, recipe, run_cuts
from helpers.planner.plan import Point, plan
from helpers.plans.schedules import one_f_one_b
from helpers.plans.schedules.times import bubble, timeline
from helpers.runtime.launch import launch
from helpers.simulate.plan import Plan
from helpers.simulate.topology import DGX_A100
from helpers.training.twin import compare

CONFIG = GPTConfig(vocab=33, context=8, width=16, layers=4, heads=2, tied=False)


def test_the_points_of_a_front_run_and_equal_their_twins():
    """A pipeline in chunks; tensor and sequence parallelism; ZeRO, alone and with a pipeline."""
    kinds = [
        (("pp", "tp"), {"chunks": 2}),
        (("dp", "tp"), {"zero": 3, "sequence": True}),
        (("pp", "dp"), {"zero": 1}),
    ]
    for axes, fixed in kinds:
        found = plan(CONFIG, DGX_A100.of(4), 8, axes=axes, micro=1, **fixed).points
        point = next(p for p in found if all(p.plan.ranks(axis) == 2 for axis in axes))
        made = compare(
            recipe(point), config=point.config, sequences=8, steps=2,
            micro_batches=point.plan.micro_batches,
        )  # fmt: skip
        assert made.first_wrong() is None, point.title()


def test_each_rank_takes_its_part_of_a_sequence():
    recipes = []
    for sequence in (False, True):
        found = plan(CONFIG, DGX_A100.of(4), 8, axes=("cp", "tp"), micro=1, sequence=sequence)
        recipes += [next(recipe(p) for p in found.points if p.plan.ranks("cp") == 2)]
    assert list(launch(taken, workers=4, recipes=recipes)) == [[(8, 4), (8, 4)]] * 4
    one = Plan(layout=Layout(cp=2), sequences=8, tokens=8, zero=1)  # states are cut over cp, too
    assert recipe(Point(config=CONFIG, plan=one, step=None)).owner is Zero1


def taken(worker, recipes):
    batch = random_batch(0, 8, 8, 33)
    return [tuple(made(CONFIG).take(batch).tokens.shape) for made in recipes]


UNEVEN = Layers(computing=(0.5, 1, 1, 1, 1, 4), update=(2, 1, 1, 1, 1, 3))


@pytest.mark.parametrize(
    ("cuts", "stages", "update"),
    [((2, 2), (2.5, 6), 5), ((3, 1), (3.5, 5), 5), ((1, 1, 2), (1.5, 1, 6), 5), ((4,), (8.5,), 9)],
)
def test_a_prediction_is_the_pipeline_s_time_and_the_longest_update(cuts, stages, update):
    for m in (1, 2, 5):
        expected = sum(stages) + (m - 1) * max(stages) + update
        assert UNEVEN.predicted(cuts, m) == expected


ONCE = Layers(computing=(0, 1, 1, 1, 1, 0), update=(0, 0, 0, 0, 0, 4))  # 8 micro-batches share it


@pytest.mark.parametrize(
    ("layers", "m", "best"),
    [(UNEVEN, 1, (3, 1)), (UNEVEN, 4, (3, 1)), (UNEVEN, 9, (3, 1)), (ONCE, 8, (2, 2))],
)
def test_the_plan_is_the_best_cut(layers, m, best):
    every = [(k, 4 - k) for k in (1, 2, 3)]
    found = layers.plan(2, m)
    assert found.cuts == best
    # the update of a stage counts in the plan, where the prediction has the longest alone
    assert layers.predicted(found.cuts, m) == min(layers.predicted(cuts, m) for cuts in every)


def test_the_formula_is_the_timeline_s_makespan_for_two_stages():
    """Forward and backward of a stage are one time here; 1F1B hides the shorter stage's."""
    for first, second, m in itertools.product((1.0, 3.0), (1.0, 2.0), (2, 5)):

        class Unequal:
            message = 0.0

            def of(self, action, own=(first, second)):
                return own[action.stage] / 2

        made = bubble(timeline(one_f_one_b(2, m), Unequal())).makespan
        assert made <= first + second + (m - 1) * max(first, second)


def test_a_planned_pipeline_runs_beside_the_equal_split():
    """Times are reported, and decide nothing here."""
    config = GPTConfig(vocab=3000, context=16, width=16, layers=4, heads=2)
    found = run_cuts(config, micro_batches=2, sequences=1, tokens=16, repeats=2,
                         cuts={"early": (1, 3)})  # fmt: skip
    assert list(found) == ["equal", "planned", "early"]
    assert [found[name].cuts for name in ("equal", "early")] == [(2, 2), (1, 3)]
    assert sum(found["planned"].cuts) == 4
    for one in found.values():
        assert len(one.steps) == 2
        assert min(*one.steps, one.predicted) > 0
        assert one.measured in (min(one.steps), max(one.steps), sum(one.steps) / 2)
    assert found["planned"].predicted <= 1.01 * min(one.predicted for one in found.values())
    with pytest.raises(ValueError, match="3 layers have no equal split over 2 ranks"):
        run_cuts(GPTConfig(layers=3))
