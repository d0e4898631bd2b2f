"""PyTorch's own ZeRO stage 1 behind the protocol trains like one process.

Absolute tolerance in float64: 1e-12, as for our own strategies.
"""

import pytest

from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.zero_redundancy import TorchZeroRedundancy
from helpers.parallel.optimizer import OptimizerConfig
from helpers.runtime.failure import WorkerError
from helpers.training.twin import compare
from tests.parallel.libraries.by_the_step import Spoiled

pytestmark = pytest.mark.usefixtures("kept_ranks")
TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


class Careful(Spoiled, TorchZeroRedundancy):
    pass


def twin(**changes):
    return compare(Careful, config=TINY, steps=2, seed=3, device="cpu", workers=2, **changes)


RULES = [
    OptimizerConfig(betas=(0.7, 0.8), eps=1e-3, weight_decay=0.3, clip=0.05),
    OptimizerConfig(rule="sgd", lr=0.1, momentum=0.5, clip=None),
]


@pytest.mark.parametrize("optimizer", RULES)
def test_the_same_as_one_process_after_a_load_too(optimizer):
    comparison = twin(optimizer=optimizer, micro_batches=2)
    assert comparison, comparison


def test_it_takes_the_axis_dp_alone():
    with pytest.raises(WorkerError, match="make the mesh with the axis dp only"):
        twin(layout={"dp": 1, "tp": 2})
