"""Each stage equals one process: loss, norm, gradients, parameters, optimizer state, loads.

Tolerance: 1e-12 absolute in float64; the sums over ranks add in another order.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.comm.transport import GroupTransport, SharedTransport
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import Mixed
from helpers.parallel.recipe import Recipe
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules.interleaved import interleaved
from helpers.plans.schedules.plain import gpipe, naive, one_f_one_b
from helpers.plans.schedules.zero_bubble import zero_bubble_h1, zero_bubble_v
from helpers.runtime.launch import launch
from helpers.training.twin import compare
from tests.parallel.sample_owners import ByHand
from tests.parallel.zero.beside import GPT2, ODD, Case, far, frozen

TOLERANCE = 1e-12
DEEP = replace(ODD, layers=4)
SMOOTH = OptimizerConfig(eps=1e-4)  # see helpers.parallel.precision.BOUNDS
EXACT = Mixed(low=torch.float64)  # no rounding, so any difference is an error in bookkeeping
KEPT = partial(Zero3, reshard_after_forward=False)
STAGES = {"1": Zero1, "2": Zero2, "3": Zero3, "3, kept": KEPT}
NEXT = {"1": Zero3, "2": Zero1, "3": Zero2, "3, kept": Zero1}  # loads the state of the other
pytestmark = pytest.mark.filterwarnings("ignore:ZeRO stage")


def cases_of(stage: str, workers: int) -> dict[str, Case]:
    owner = STAGES[stage]
    recipe = partial(Recipe, owner=owner)
    if workers == 3:
        loads = recipe(owner=NEXT[stage])
        return {"odd sizes": Case(recipe(), micro_batches=2, sequences=7, loads=loads)}
    if workers == 4:
        both = {"dp": 2, "tp": 2}
        return {
            "a rank without data": Case(recipe(), GPT2, sequences=3),
            "tensor": Case(recipe(transform=tensor_parallel), layout=both, micro_batches=2),
            "tensor, untied": Case(
                recipe(transform=tensor_parallel), replace(ODD, tied=False), layout=both
            ),
            "sequence": Case(recipe(transform=sequence_parallel), GPT2, layout=both),
        }
    half = frozen("attention", "norm")
    flying = {} if stage == "1" else {"in_flight": 1}
    return {
        "overlapped": Case(recipe(owner=partial(owner, **flying)), GPT2, micro_batches=2),
        "micro-batches": Case(recipe(), GPT2, micro_batches=3),
        "master copies": Case(recipe(precision=EXACT), micro_batches=2),
        "recomputed": Case(recipe(), replace(GPT2, recompute="full", tied=True)),
        "recomputed in part": Case(recipe(), replace(ODD, recompute="selective")),
        "by hand": Case(recipe(engine=ByHand), micro_batches=2),
        "shared memory": shared(owner, GPT2, 2),
        "gloo's own calls": Case(recipe(owner=partial(owner, transport=GroupTransport))),
        "half frozen": Case(recipe(transform=half), GPT2, alone=Recipe(transform=half)),
        "a frozen block": freeze(recipe, "blocks.1", "norm"),
        "a frozen embedding": freeze(recipe, "embedding"),
        "one trained vector": freeze(recipe, "weight", "positions", config=ODD),
        "no clipping": Case(recipe(), optimizer=OptimizerConfig(clip=None)),
        "sgd": Case(recipe(), optimizer=OptimizerConfig(rule="sgd", clip=0.1)),
        "rmsprop": Case(recipe(), optimizer=OptimizerConfig(rule=torch.optim.RMSprop)),
    }


def shared(owner, config, micro_batches):
    owner = partial(owner, transport=SharedTransport)
    return Case(Recipe(owner=owner), config, micro_batches=micro_batches)


def freeze(recipe, *patterns, config=ODD):
    config = replace(config, bias=True, norm="layer")
    transform = frozen(*patterns)
    return Case(recipe(transform=transform), config, alone=Recipe(transform=transform))


def wrong(workers: int, cases: dict) -> list[dict]:
    """The cases beyond the tolerance, on each rank. One launch for all: a launch takes longer."""
    runs = launch(far, workers, device="cpu", cases=cases)
    assert all(run.keys() == cases.keys() for run in runs)
    return [{name: value for name, value in run.items() if not value <= TOLERANCE} for run in runs]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_each_stage_equals_one_process(workers):
    cases = {
        (stage, name): case for stage in STAGES for name, case in cases_of(stage, workers).items()
    }
    assert wrong(workers, cases) == [{}] * workers


def piped(stage: str, schedule, config=DEEP) -> Case:
    layout = {"pp": 2, "dp": 2}
    recipe = Recipe(owner=STAGES[stage], layout=Layout(**layout), schedule=schedule)
    return Case(recipe, config, layout=layout, micro_batches=4)


def test_with_a_pipeline():
    """Stage 1 with every schedule; the others free and gather for each micro-batch."""
    plain = {"gpipe": gpipe, "1f1b": one_f_one_b}
    others = {
        "naive": naive,
        "interleaved": partial(interleaved, chunks=2),
        "zero bubble H1": zero_bubble_h1,
        "zero bubble V": zero_bubble_v,
    }
    cases = {(s, name): piped(s, made) for s in STAGES for name, made in plain.items()}
    cases |= {("1", name): piped("1", made) for name, made in others.items()}
    untied = replace(GPT2, recompute="full")
    cases |= {(s, "untied"): piped(s, one_f_one_b, untied) for s in STAGES}
    assert wrong(4, cases) == [{}] * 4


def test_the_harness_agrees():
    comparison = compare(Recipe(owner=KEPT), steps=2, device="cpu", config=ODD)
    assert comparison, comparison
    assert comparison.lossy == ""


def test_bf16_stays_within_its_bound():
    recipe = Recipe(owner=Zero3, precision=Mixed())
    comparison = compare(
        recipe, dtype=torch.float32, device="cpu", config=ODD, steps=8, optimizer=SMOOTH
    )
    assert comparison, comparison
    assert "bfloat16" in comparison.lossy
