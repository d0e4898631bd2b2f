"""What a pipeline cannot run, it refuses with a reason; a rank that dies is named."""

import os
import signal
from functools import partial

import pytest

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.pipeline.engine import OneStep
from helpers.parallel.trainer import Recipe
from helpers.plans.schedules import gpipe, one_f_one_b
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


def test_other_micro_batches_than_the_schedules(two):
    with pytest.raises(WorkerError, match=r"the schedule has 4 micro-batches, but .* into 2"):
        run(two, one_f_one_b(2, 4), micro_batches=2)
    assert run(two, one_f_one_b(2, 4))[0] == [48]  # a schedule as data brings its own number


@pytest.mark.parametrize("second", [(4, 9), (5, 12)])
def test_a_batch_of_another_shape(two, second):
    with pytest.raises(
        WorkerError, match="this pipeline's buffers are for at most 2 sequences of 12"
    ):
        run(two, batches=((4, 12), second), micro_batches=2)


def test_a_smaller_batch_fits(two):
    assert run(two, batches=((4, 12), (3, 12), (0, 12)), micro_batches=2)[0] == [48, 36, 0]


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
