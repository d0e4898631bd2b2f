"""Accelerate behind the protocol trains like one process.

Absolute tolerance in float64: 1e-12, as for our own strategies.
"""

import pytest

from helpers.parallel.libraries.accelerate_ddp import AccelerateDataParallel
from helpers.runtime.failure import WorkerError
from tests.parallel.libraries.by_the_step import CASES, SGD, ByTheStep, twin

pytestmark = pytest.mark.usefixtures("kept_ranks")


class OneRate(ByTheStep, AccelerateDataParallel):
    pass


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_the_same_as_one_process(changes):
    comparison = twin(AccelerateDataParallel, **changes)
    assert comparison, comparison


def test_a_step_s_own_rate():
    comparison = twin(OneRate, **SGD)
    assert comparison, comparison


def test_gradients_are_sent_once_in_a_step():
    few, many = (twin(AccelerateDataParallel, workers=2, micro_batches=m) for m in (1, 4))
    for a, b in zip(few.ranks, many.ranks, strict=True):
        assert a.ledger.wire == b.ledger.wire > 0


def test_it_needs_the_whole_world():
    with pytest.raises(WorkerError, match="whole world"):
        twin(AccelerateDataParallel, workers=2, layout={"dp": 1, "tp": 2})
