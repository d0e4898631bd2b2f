"""PyTorch's DDP, also behind Accelerate: what it sends and holds, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.models.settings import ExpertSettings
from helpers.parallel.ddp.strategy import DataParallel
from helpers.parallel.libraries.data_parallel import (
    AccelerateDataParallel,
    TorchDataParallel,
    TorchZeroRedundancy,
)
from helpers.parallel.libraries.strategy import WrongWrapper
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.training.twin import compare

pytestmark = pytest.mark.usefixtures("kept_ranks")
TINY = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2)


def twin(strategy, **changes):
    return compare(strategy, **{"config": TINY, "steps": 2, "device": "cpu", **changes})


@pytest.mark.parametrize("strategy", [TorchDataParallel, AccelerateDataParallel])
def test_gradients_are_sent_once_in_a_step(strategy):
    few, many = (twin(strategy, workers=2, micro_batches=m) for m in (1, 4))
    for a, b in zip(few.ranks, many.ranks, strict=True):
        assert a.ledger.wire == b.ledger.wire > 0


class Viewed(TorchDataParallel):
    """Its DDP got the option."""

    def close(self):
        assert self.replica.gradient_as_bucket_view
        super().close()


def test_ours_sends_no_more_bytes_and_holds_no_more_than_torch_s():
    ours = twin(DataParallel, workers=2, steps=4)
    theirs = twin(Viewed, workers=2, steps=4, gradient_as_bucket_view=True)
    for a, b in zip(ours.ranks, theirs.ranks, strict=True):
        assert a.ledger.wire <= b.ledger.wire
        assert a.memory.model_states <= b.memory.model_states
        assert a.memory.activations <= b.memory.activations


@pytest.mark.parametrize(
    "strategy", [TorchDataParallel, AccelerateDataParallel, TorchZeroRedundancy]
)
def test_another_axis_is_refused(strategy):
    words = f"{strategy.__name__} needs a mesh with the axes dp only, in this order, not Layout"
    with pytest.raises(WorkerError, match=words):
        twin(strategy, workers=2, layout={"dp": 1, "tp": 2})


def test_a_balance_of_experts_by_a_bias_is_refused():
    config = replace(TINY, experts=ExpertSettings(count=4, bias_rate=0.1))
    with pytest.raises(ValueError, match="use bias_rate=0"):
        TorchDataParallel(config, 0, SimpleNamespace(layout=Layout(dp=2)))


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


def evaluated(worker):
    """Twice, with dropout: and whether training goes on, also after an evaluation that failed."""
    config = GPTConfig(vocab=32, context=8, width=16, layers=2, heads=2, dropout=0.5)
    trained = TorchDataParallel(config, 0, make_mesh(Layout(dp=worker.world_size)))
    batch = random_batch(0, 5, 8, 32, ignored=0.3)
    own = batch.shard(worker.rank, worker.world_size)
    found = [trained.evaluate(own) for _ in range(2)]
    held = trained.held()
    trained.model.loss = None
    with pytest.raises(TypeError):
        trained.evaluate(own)
    return found, trained.model.training, held


def test_an_evaluation_drops_nothing_and_leaves_training_on():
    numbers = sum(p.numel() for p in TINY.build(device="meta").parameters())
    for (first, second), training, held in launch(evaluated, 2, device="cpu"):
        assert first == second
        assert training
        assert held == {("parameters", "cpu"): 4 * numbers}
