"""The fixture `kept_ranks`: launches share ranks, and a twin is trained once for its options."""

import os

import pytest
import torch

from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.training import twin

pytestmark = pytest.mark.usefixtures("kept_ranks")
fresh = launch  # the fixture replaces the name `launch` during a test
TINY = GPTConfig(vocab=8, context=4, width=8, layers=1, heads=2)


def pid(worker):
    return os.getpid()


def test_launches_share_ranks_until_one_fails():
    first = list(launch(pid, 1, device="cpu"))
    assert list(launch(pid, 1, device="cpu")) == first
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        launch(lambda worker: 1 / 0, 1, device="cpu")
    assert list(launch(pid, 1, device="cpu")) != first
    assert launch is not fresh


def trained(**changes):
    given = {
        "config": TINY,
        "seed": 0,
        "dtype": torch.float64,
        "optimizer": OptimizerConfig(),
        "steps": 1,
        "batches": lambda k: twin.some_batch(0, 2, TINY, k),
    }
    return twin.launch(twin.train_twin, 1, device="cpu", **given | changes)[0]


def test_a_twin_is_trained_again_for_other_options_only():
    one = trained()
    assert trained() is one
    assert len(trained(steps=2)["record"]) == len(one["record"]) + 1
    for changes in (
        {"seed": 1},
        {"optimizer": OptimizerConfig(lr=0.5)},
        {"batches": lambda k: twin.some_batch(1, 2, TINY, k)},
        {"dtype": torch.float32},
    ):
        assert trained(**changes) is not one, changes
