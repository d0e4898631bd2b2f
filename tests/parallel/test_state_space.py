"""State space models and hybrids train under every owner and schedule as in one process.

Tolerance: 1e-12 absolute in float64; the sums over ranks add in another order.
"""

from dataclasses import replace
from functools import partial

import pytest

from helpers.comm.mesh import Layout
from helpers.models.config import GPTConfig
from helpers.models.ssm_settings import Mamba2Settings, MambaSettings
from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.recipe import Recipe
from helpers.parallel.tensor.transform import tensor_parallel
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules.plain import one_f_one_b
from helpers.plans.schedules.zero_bubble import zero_bubble_h1
from helpers.runtime.launch import launch
from tests.parallel.zero.beside import Case, far

TOLERANCE = 1e-12
HYBRID = GPTConfig(
    vocab=33,
    context=8,
    width=12,
    layers=3,
    heads=2,
    mixer=("mamba", "attention", "mamba2"),
    mamba=MambaSettings(state=3),
    mamba2=Mamba2Settings(state=3, head=4, chunk=3),
    rotary_share=1 / 3,
)
PURE = replace(HYBRID, mixer=("mamba", "mamba2", "mamba"), mlp="none", positions="none", bias=True)
OWNERS = {
    "naive": partial(Replicated, replica=NaiveDDP),
    "overlapped": Replicated,
    "ZeRO 1": Zero1,
    "ZeRO 2": Zero2,
    "ZeRO 3": Zero3,
}
pytestmark = pytest.mark.filterwarnings("ignore:ZeRO stage")


def wrong(workers: int, cases: dict) -> list[dict]:
    """The cases beyond the tolerance, on each rank. One launch for all: a launch takes longer."""
    runs = launch(far, workers, device="cpu", cases=cases)
    assert all(run.keys() == cases.keys() for run in runs)
    return [{name: value for name, value in run.items() if not value <= TOLERANCE} for run in runs]


def piped(schedule, config, **changes) -> Case:
    recipe = Recipe(layout=Layout(pp=2), schedule=schedule, **changes)
    return Case(recipe, config, layout={"pp": 2}, micro_batches=3)


def test_two_ranks_equal_one_process():
    cases = {
        (name, kind): Case(Recipe(owner=owner), config, micro_batches=2)
        for name, owner in OWNERS.items()
        for kind, config in (("hybrid", replace(HYBRID, recompute="full")), ("pure", PURE))
    }
    for name, schedule in (("1F1B", one_f_one_b), ("ZB-H1", zero_bubble_h1)):
        cases[name, "hybrid"] = piped(schedule, replace(HYBRID, dropout=0.2))
        cases[name, "pure"] = piped(schedule, PURE)
    assert wrong(2, cases) == [{}] * 2


def test_a_pipeline_of_stages_that_are_cut_by_heads():
    config = replace(HYBRID, mixer=("mamba2", "attention", "mamba2"))
    layout = {"pp": 2, "tp": 2}
    recipe = Recipe(layout=Layout(**layout), schedule=one_f_one_b, transform=tensor_parallel)
    cases = {"tensor": Case(recipe, config, layout=layout, micro_batches=2)}
    assert wrong(4, cases) == [{}] * 4
