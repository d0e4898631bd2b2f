"""PyTorch's DDP behind the protocol trains like one process.

Absolute tolerance in float64: 1e-12, as for our own strategies.
"""

import pytest

from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.libraries.torch_ddp import TorchDataParallel
from tests.parallel.libraries.by_the_step import CASES, SGD, ByTheStep, twin

pytestmark = pytest.mark.usefixtures("kept_ranks")


class OneRate(ByTheStep, TorchDataParallel):
    pass


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_the_same_as_one_process(changes):
    comparison = twin(TorchDataParallel, **changes)
    assert comparison, comparison


def test_a_step_s_own_rate():
    comparison = twin(OneRate, **SGD)
    assert comparison, comparison


def test_gradients_are_sent_once_in_a_step():
    few, many = (twin(TorchDataParallel, workers=2, micro_batches=m) for m in (1, 4))
    for a, b in zip(few.ranks, many.ranks, strict=True):
        assert a.ledger.wire == b.ledger.wire > 0


class Viewed(TorchDataParallel):
    """Its DDP got the option."""

    def close(self):
        assert self.replica.gradient_as_bucket_view
        super().close()


def test_ours_sends_no_more_bytes_and_holds_no_more_than_torch_s():
    ours = twin(DataParallel, workers=2)
    theirs = twin(Viewed, workers=2, gradient_as_bucket_view=True)
    for a, b in zip(ours.ranks, theirs.ranks, strict=True):
        assert a.ledger.wire <= b.ledger.wire
        assert a.memory.model_states <= b.memory.model_states
        assert a.memory.activations <= b.memory.activations
