"""Accelerate behind the protocol trains like one process.

Absolute tolerance in float64: 1e-12, as for our own strategies.
"""

from dataclasses import replace

import pytest

from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.accelerate_ddp import AccelerateDataParallel
from helpers.parallel.optimizer import OptimizerConfig
from helpers.runtime.failure import WorkerError
from helpers.training.twin import compare

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


def twin(strategy, **changes):
    return compare(strategy, **{"config": TINY, "steps": 5, "device": "cpu", **changes})


class ByTheStep(AccelerateDataParallel):
    """Its rule has another learning rate: each step gets the twin's rate as an argument."""

    def __init__(self, *arguments, optimizer, **options):
        self.rate = optimizer.lr
        super().__init__(*arguments, optimizer=replace(optimizer, lr=9.0), **options)

    def step(self, batch, lr=None):
        return super().step(batch, lr=self.rate)


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        (AccelerateDataParallel, {"workers": 2}),
        (AccelerateDataParallel, {"workers": 3, "micro_batches": 2, "sequences": 7}),
        (AccelerateDataParallel, {"workers": 4, "sequences": 3}),  # rank 3 has no data
        (ByTheStep, {"workers": 2, "optimizer": OptimizerConfig(rule="sgd", lr=0.1, clip=None)}),
    ],
    ids=["two", "three", "an empty rank", "sgd"],
)
def test_the_same_as_one_process(strategy, changes):
    comparison = twin(strategy, **changes)
    assert comparison, comparison


def test_it_needs_the_whole_world():
    with pytest.raises(WorkerError, match="whole world"):
        twin(AccelerateDataParallel, workers=2, layout={"dp": 1, "tp": 2})
