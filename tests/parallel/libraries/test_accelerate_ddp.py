"""Accelerate behind the protocol trains like one process.

Absolute tolerance in float64: 1e-12, as for our own strategies.
"""

import pytest

from helpers.comm.mesh import Layout, make_mesh
from helpers.parallel.libraries.accelerate_ddp import AccelerateDataParallel
from helpers.parallel.libraries.wrapped import WrongWrapper
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.parallel.libraries.by_the_step import CASES, SGD, TINY, ByTheStep, twin

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


def unwrapped(worker):
    """The error if `prepare` returns what it was given, as where Accelerate sees no ranks."""
    from accelerate import Accelerator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accelerator, "prepare", lambda _, *given: given)
        with pytest.raises(WrongWrapper) as error:
            AccelerateDataParallel(TINY, 0, make_mesh(Layout(dp=1)))
    return str(error.value)


def test_what_accelerate_makes_is_checked():
    [said] = launch(unwrapped, 1, device="cpu")
    assert "prepare returned a Loss, not a DistributedDataParallel" in said
