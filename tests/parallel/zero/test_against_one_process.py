"""Each stage equals one process: loss, gradients, parameters, a load.

Tolerance: 1e-12 absolute in float64; the sums over ranks add in another order.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.transport import SharedTransport
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import Mixed
from helpers.parallel.recipe import Recipe, plain
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.training.twin import compare
from tests.parallel.owners import ByHand

ODD = GPTConfig(vocab=33, context=8, width=12, layers=2, heads=2)  # no world divides its rows
GPT2 = replace(
    ODD, norm="layer", positions="learned", mlp="gelu", bias=True, dropout=0.2, tied=False
)
EXACT = Mixed(low=torch.float64)  # no rounding, so any difference is an error in bookkeeping
STAGES = {
    "1": Zero1,
    "2": Zero2,
    "3": Zero3,
    "3, kept": partial(Zero3, reshard_after_forward=False),
}
every_stage = pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
pytestmark = pytest.mark.filterwarnings("ignore:ZeRO stage")


def twin(stage, *, workers=2, **changes):
    seams = {key: changes.pop(key) for key in ("transform", "engine", "precision") & changes.keys()}
    options = {"config": ODD, "steps": 3, "device": "cpu", "sequences": 5, **changes}
    return compare(Recipe(owner=stage, **seams), workers=workers, **options)


@every_stage
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_each_stage_equals_one_process(stage, workers):
    """Five sequences in two micro-batches: with four ranks, some micro-batches are empty."""
    config, micro_batches = (GPT2, 2) if workers == 4 else (ODD, workers - 1)
    comparison = twin(stage, workers=workers, config=config, micro_batches=micro_batches)
    assert comparison, comparison
    assert comparison.lossy == ""
