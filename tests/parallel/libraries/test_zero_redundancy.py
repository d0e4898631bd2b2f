"""PyTorch's own ZeRO stage 1 behind the protocol trains like one process.

Absolute tolerance in float64: 1e-12, as for our own strategies.
"""

import pytest

from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.zero_redundancy import TorchZeroRedundancy
from helpers.parallel.optimizer import OptimizerConfig
from helpers.runtime.failure import WorkerError
from helpers.training.twin import compare

pytestmark = pytest.mark.usefixtures("kept_ranks")
TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


def twin(**changes):
    return compare(TorchZeroRedundancy, config=TINY, steps=2, device="cpu", workers=2, **changes)


@pytest.mark.parametrize("optimizer", [None, OptimizerConfig(rule="sgd", lr=0.1, clip=None)])
def test_the_same_as_one_process_after_a_load_too(optimizer):
    comparison = twin(optimizer=optimizer, micro_batches=2)
    assert comparison, comparison


def test_it_takes_the_axis_dp_alone():
    with pytest.raises(WorkerError, match="make the mesh with the axis dp only"):
        twin(layout={"dp": 1, "tp": 2})
