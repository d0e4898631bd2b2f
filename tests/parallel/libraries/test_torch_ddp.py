"""PyTorch's DDP behind the protocol trains like one process.

Absolute tolerance in float64: 1e-12, as for our own strategies.
"""

from dataclasses import replace

import pytest

from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.libraries.torch_ddp import TorchDataParallel
from helpers.parallel.optimizer import OptimizerConfig
from helpers.training.twin import compare

TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


def twin(strategy, **changes):
    return compare(strategy, **{"config": TINY, "steps": 5, "device": "cpu", **changes})


class ByTheStep(TorchDataParallel):
    """Its rule has another learning rate: each step gets the twin's rate as an argument."""

    def __init__(self, *arguments, optimizer, **options):
        self.rate = optimizer.lr
        super().__init__(*arguments, optimizer=replace(optimizer, lr=9.0), **options)

    def step(self, batch, lr=None):
        return super().step(batch, lr=self.rate)


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        (TorchDataParallel, {"workers": 2}),
        (TorchDataParallel, {"workers": 3, "micro_batches": 2, "sequences": 7}),
        (TorchDataParallel, {"workers": 4, "sequences": 3}),  # rank 3 has no data
        (ByTheStep, {"workers": 2, "optimizer": OptimizerConfig(rule="sgd", lr=0.1, clip=None)}),
    ],
    ids=["two", "three", "an empty rank", "sgd"],
)
def test_the_same_as_one_process(strategy, changes):
    comparison = twin(strategy, **changes)
    assert comparison, comparison


def test_ours_sends_no_more_bytes_and_holds_no_more_than_torch_s():
    ours = twin(DataParallel, workers=2)
    theirs = twin(TorchDataParallel, workers=2, gradient_as_bucket_view=True)
    for a, b in zip(ours.ranks, theirs.ranks, strict=True):
        assert a.ledger.wire <= b.ledger.wire
        assert a.memory.model_states <= b.memory.model_states
        assert a.memory.activations <= b.memory.activations
