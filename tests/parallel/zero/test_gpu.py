"""Each stage on GPUs, with NCCL: beside one process on the same kind of device."""

from functools import partial

import pytest
import torch

from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.training.twin import compare

STAGES = [Zero1, Zero2, Zero3, partial(Zero3, reshard_after_forward=False)]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:ZeRO stage"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("stage", STAGES, ids=["1", "2", "3", "3, kept"])
def test_a_rank_per_gpu_equals_one_process(stage):
    comparison = compare(
        Recipe(owner=stage), workers=torch.cuda.device_count(), steps=4, micro_batches=2
    )
    assert comparison, comparison


def test_freed_parameters_leave_the_gpu_s_memory():
    """One rank: gathered units are freed after use, so their bytes are not held between steps."""
    comparison = compare(Recipe(owner=Zero3), workers=1, steps=2)
    assert comparison, comparison
    held = comparison.ranks[0].held
    assert held["parameters", "cuda:0"] <= comparison.twin.memory.parameters + 8 * 64
