"""Pipelines on GPUs with NCCL: the same numbers, and no deadlock of the two directions."""

from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.models.gpt import GPTConfig
from helpers.parallel.trainer import Recipe
from helpers.plans import schedules
from helpers.training.twin import compare

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices"),
]

CONFIG = GPTConfig(vocab=33, context=12, width=24, layers=4, heads=4, dropout=0.1)
SCHEDULES = {
    "GPipe": schedules.gpipe,
    "1F1B": schedules.one_f_one_b,
    "interleaved": partial(schedules.interleaved, chunks=2),
    "ZB-H1": schedules.zero_bubble_h1,
    "ZB-V": schedules.zero_bubble_v,
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_two_gpus_equal_one(schedule):
    recipe = Recipe(layout=Layout(pp=2), schedule=schedule)
    comparison = compare(recipe, config=CONFIG, steps=3, micro_batches=4, device="cuda")
    assert comparison, comparison


def test_three_axes():
    if GPUS < 8:
        pytest.skip("needs eight CUDA devices")
    recipe = Recipe(layout=Layout(pp=2, dp=2, tp=2), schedule=schedules.one_f_one_b)
    comparison = compare(recipe, config=CONFIG, steps=3, micro_batches=4, device="cuda")
    assert comparison, comparison
