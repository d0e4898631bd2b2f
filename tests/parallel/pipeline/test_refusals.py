"""A rank of a pipeline that dies is named, and the next call works."""

import os
import signal

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


def tokens(worker, recipe, **options):
    """The targets of a step."""
    trainer = recipe(CONFIG, 0, make_mesh(Layout(pp=2)), **options)
    return trainer.step(random_batch(0, 4, 12, CONFIG.vocab)).tokens


def recipe(schedule):
    return Recipe(layout=Layout(pp=2), schedule=schedule)


class Dies(OneStep):
    """Rank 1 dies after its second forward: rank 0 waits for a gradient that nobody sends."""

    def backward(self, stage, micro, given):
        if stage == 1 and micro == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().backward(stage, micro, given)


def dying(worker, schedule):
    from helpers.parallel.pipeline import engine

    engine.OneStep = Dies
    return tokens(worker, recipe(schedule), micro_batches=4)


@pytest.mark.parametrize("schedule", [one_f_one_b, gpipe])
def test_a_stage_killed_between_receive_and_send_is_named(two, schedule):
    with pytest.raises(WorkerError, match=r"(?s)rank 1.*SIGKILL"):
        two.run(dying, schedule=schedule)
    assert two.run(tokens, recipe=recipe(schedule))[0] == 48
