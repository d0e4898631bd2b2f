"""What a pipeline cannot run, it refuses with a reason; a rank that dies is named."""

import os
import signal
from functools import partial

import pytest

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.pipeline.engine import OneStep
from helpers.parallel.recipe import Recipe
from helpers.plans.schedules import Action, Schedule, ScheduleError, gpipe, one_f_one_b
from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError

CONFIG = GPTConfig(vocab=33, context=12, width=24, layers=2, heads=4)


@pytest.fixture(scope="module")
def two():
    with Cluster(workers=2, device="cpu") as cluster:
        yield cluster


def steps(worker, recipe, batches, config=CONFIG, **options):
    trainer = recipe(config, 0, make_mesh(Layout(pp=2)), **options)
    return [trainer.step(random_batch(0, *shape, config.vocab)).tokens for shape in batches]


def run(two, schedule=one_f_one_b, batches=((4, 12),), **options):
    return two.run(steps, recipe=recipe(schedule), batches=batches, **options)


def recipe(schedule, **sizes):
    return Recipe(layout=Layout(**(sizes or {"pp": 2})), schedule=schedule)


def test_fewer_layers_than_stages(two):
    config = GPTConfig(vocab=33, context=12, width=24, layers=1, heads=4)
    with pytest.raises(
        WorkerError, match="1 layers cannot fill 2 stages: each stage needs a layer"
    ):
        run(two, config=config, micro_batches=2)


def test_a_schedule_for_other_ranks(two):
    with pytest.raises(WorkerError, match="1F1B is a schedule for 3 ranks, but the axis pp of"):
        run(two, one_f_one_b(3, 2))


def test_other_micro_batches_than_the_schedules(two):
    with pytest.raises(WorkerError, match=r"the schedule has 4 micro-batches, but .* into 2"):
        run(two, one_f_one_b(2, 4), micro_batches=2)
    assert run(two, one_f_one_b(2, 4))[0] == [48]  # a schedule as data brings its own number


def test_a_schedule_that_cannot_run_is_refused_before_any_message(two):
    order = gpipe(2, 1).orders
    wrong = Schedule("edited", (0, 1), 1, (tuple(reversed(order[0])), order[1]))
    with pytest.raises(WorkerError, match="rank 0 computes B0 of stage 0 before F0 of stage 0"):
        run(two, wrong)
    with pytest.raises(ScheduleError, match="each rank needs a stage"):
        Schedule("edited", (0, 0), 1, ((Action("F", 0, 0),), ()))


@pytest.mark.parametrize("second", [(4, 9), (5, 12)])
def test_a_batch_of_another_shape(two, second):
    with pytest.raises(
        WorkerError, match="this pipeline's buffers are for at most 2 sequences of 12"
    ):
        run(two, batches=((4, 12), second), micro_batches=2)


def test_a_smaller_batch_fits(two):
    assert run(two, batches=((4, 12), (3, 12), (0, 12)), micro_batches=2)[0] == [48, 36, 0]


def without_targets(worker):
    """The loss of a batch without a single target, and whether the parameters are still finite."""
    trainer = recipe(one_f_one_b)(CONFIG, 0, make_mesh(Layout(pp=2)), micro_batches=2)
    step = trainer.step(random_batch(0, 4, 12, CONFIG.vocab, ignored=1.0))
    finite = all(p.isfinite().all() for p in trainer.model.parameters())
    return float(step.loss), step.tokens, bool(finite)


def test_a_batch_without_a_single_target(two):
    assert list(two.run(without_targets)) == [(0.0, 0, True)] * 2


def other_layouts(worker):
    with pytest.raises(ValueError, match=r"the recipe is for Layout\(pp=2\), not Layout\(dp=2\)"):
        recipe(one_f_one_b)(CONFIG, 0, make_mesh(Layout(dp=2)))
    with pytest.raises(ValueError, match=r"Layout\(dp=2\) has no pipeline for a schedule"):
        recipe(one_f_one_b, dp=2)(CONFIG)


def test_layouts_that_contradict_each_other(two):
    two.run(other_layouts)


class Dies(OneStep):
    """Rank 1 dies after its second forward: rank 0 waits for a gradient that nobody sends."""

    def backward(self, stage, micro, given):
        if stage == 1 and micro == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().backward(stage, micro, given)


def dying(worker, schedule):
    from helpers.parallel.pipeline import engine

    engine.OneStep = Dies
    return steps(worker, recipe(schedule), [(4, 12)], micro_batches=4)


@pytest.mark.parametrize("schedule", [one_f_one_b, gpipe])
def test_a_stage_killed_between_receive_and_send_is_named(two, schedule):
    with pytest.raises(WorkerError, match=r"(?s)rank 1.*SIGKILL"):
        two.run(dying, schedule=schedule)
    assert two.run(partial(steps, recipe=recipe(schedule)), batches=[(4, 12)])[0] == [48]
