"""DTensor's tensor and sequence parallelism: evaluations, bytes beside ours, refusals."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import IGNORED, random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.dtensor import DTensorParallel
from helpers.parallel.single import Single
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.training.twin import compare

pytestmark = pytest.mark.usefixtures("kept_ranks")

SIZES = {"vocab": 32, "context": 12, "width": 32, "layers": 2, "heads": 4}
BYTES = GPTConfig(**SIZES)
GPT2 = GPTConfig(**SIZES, norm="layer", positions="learned", mlp="gelu", bias=True)


def twin(strategy, config=BYTES, **changes):
    options = {"workers": 2, "layout": {"tp": 2}, "steps": 3, "seed": 3, "device": "cpu", **changes}
    return compare(strategy, config=config, **options)


def evaluated(worker):
    """Evaluations before and after a step in float32, and the dtype of the step's loss."""
    config, batch = replace(GPT2, dropout=0.5), random_batch(0, 3, 12, 32, ignored=0.3)
    trained = DTensorParallel(config, 0, make_mesh(Layout(tp=worker.world_size)))
    found = [trained.evaluate(batch) for _ in range(2)]
    assert trained.model.training
    nothing = replace(batch, targets=torch.full_like(batch.targets, IGNORED))
    assert trained.step(nothing).loss == 0
    assert not any(g.any() for g in trained.full_gradients().values())
    return found, trained.step(batch).loss.dtype


def test_an_evaluation_drops_nothing_and_losses_add_up_in_float64():
    batch = random_batch(0, 3, 12, 32, ignored=0.3)
    loss, count = Single(GPT2).evaluate(batch)
    for (first, second), dtype in launch(evaluated, 2, device="cpu"):
        assert first == second == (pytest.approx(loss, rel=1e-5), count)
        assert dtype == torch.float64


def test_ours_sends_what_dtensor_sends_and_less_with_sequences():
    """gloo's reduce-scatter sends the bytes of an all-reduce; ours exchanges and sums.

    The kernel counts these bytes, so no formula of ours decides. Their shares among our own ways
    are the papers': as much for sequences as without, and 1.25 times if inputs are gathered again.
    """
    config = GPTConfig(**{**SIZES, "context": 64})
    sent = {}
    for name, strategy in {
        "DTensor": DTensorParallel,
        "DTensor, sequence": partial(DTensorParallel, sequence=True),
        "tensor": Recipe(transform=tensor_parallel),
        "sequence": Recipe(transform=partial(sequence_parallel, again=False)),
        "sequence, again": Recipe(transform=sequence_parallel),
    }.items():
        rank = twin(strategy, config, steps=1).ranks[0]
        sent[name] = rank.ledger.kernel or pytest.skip("this system does not count bytes")
    assert sent["tensor"] < 1.1 * sent["DTensor"]
    assert sent["sequence"] < 0.8 * sent["DTensor, sequence"]
    assert sent["sequence"] == pytest.approx(sent["tensor"], rel=0.01)
    assert sent["sequence, again"] == pytest.approx(1.25 * sent["sequence"], rel=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layout": {"dp": 2}}, "needs a mesh with the axes tp only"),
        ({"config": GPT2, "sequence": True}, "learned positions to whole sequences: use rotary"),
    ],
    ids=["axes", "positions"],
)
def test_what_it_cannot_train(changes, words):
    with pytest.raises(WorkerError, match=words):
        twin(DTensorParallel, **changes)


def test_other_layers_are_refused_before_any_message():
    seat = SimpleNamespace(layout=Layout(tp=2))
    with pytest.raises(ValueError, match="the config has mlp='none'"):
        DTensorParallel(replace(BYTES, mlp="none"), 0, seat)
    with pytest.raises(ValueError, match="block 0 has mixer 'mamba2'"):
        DTensorParallel(replace(BYTES, mixer="mamba2"), 0, seat)
