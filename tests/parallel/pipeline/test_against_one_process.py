"""Pipelines beside one process: loss, norm, gradients, parameters, a load, an evaluation.

Tolerance: 1e-12 absolute in float64; sums over micro-batches and ranks add in another order.
"""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.models.gpt import GPTConfig
from helpers.parallel.ddp.bucketed import BucketedDDP
from helpers.parallel.ddp.naive import NaiveDDP
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules import gpipe, naive, one_f_one_b
from helpers.plans.schedules.interleaved import interleaved
from helpers.plans.schedules.zero_bubble import zero_bubble_h1, zero_bubble_v
from helpers.runtime.cluster import Cluster
from tests.parallel.pipeline.beside import on_ranks, recipe_of

SIZES = {"vocab": 33, "context": 12, "width": 24, "heads": 4}  # 33: nothing divides it
BYTES = GPTConfig(**SIZES, layers=4)
GPT2 = GPTConfig(
    **SIZES, layers=4, norm="layer", positions="learned", mlp="gelu", bias=True, dropout=0.2
)
GROUPED = GPTConfig(**SIZES, layers=6, kv_heads=2, hidden=50, tied=False, dropout=0.1)
CONFIGS = {"rotary, SwiGLU, tied": BYTES, "GPT-2 with dropout": GPT2, "grouped, untied": GROUPED}
SCHEDULES = {
    "naive": naive,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": partial(interleaved, chunks=2),
    "ZB-H1": zero_bubble_h1,
    "ZB-V": zero_bubble_v,
}


@pytest.fixture(scope="module")
def ranks():
    """Ranks by their number, started once for all tests of this file."""
    started: dict[int, Cluster] = {}

    def get(number: int) -> Cluster:
        if number not in started:
            started[number] = Cluster(workers=number, device="cpu")
        return started[number]

    yield get
    for cluster in started.values():
        cluster.close()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_two_stages_equal_one_process(ranks, schedule):
    """Five sequences in four micro-batches: the first has more than the others."""
    for config in CONFIGS.values():
        on_ranks(ranks(2), recipe_of(schedule, pp=2), config)


MORE = [(3, "naive"), (3, "interleaved"), (3, "ZB-H1"), (4, "GPipe"), (4, "1F1B"), (4, "ZB-V")]


@pytest.mark.parametrize(("stages", "schedule"), MORE)
def test_more_stages_equal_one_process(ranks, schedule, stages):
    config, recipe = replace(GPT2, layers=2 * stages), recipe_of(SCHEDULES[schedule], pp=stages)
    on_ranks(ranks(stages), recipe, config, micro_batches=2 * stages)


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_fewer_micro_batches_than_stages(ranks, schedule):
    on_ranks(ranks(4), recipe_of(schedule, pp=4), BYTES, micro_batches=2)


def test_fewer_sequences_than_micro_batches(ranks):
    """The last micro-batches are empty: they send no message, and add nothing."""
    on_ranks(ranks(2), recipe_of(one_f_one_b, pp=2), GPT2, sequences=2)
    on_ranks(ranks(2), recipe_of(zero_bubble_v, pp=2), GPT2, sequences=2)


def test_micro_batches_without_a_single_target(ranks):
    on_ranks(ranks(2), recipe_of(one_f_one_b, pp=2), BYTES, ignored=0.98)


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("schedule", ["1F1B", "ZB-V"])
def test_recomputation_changes_nothing(ranks, schedule, recompute):
    config = replace(GPT2, recompute=recompute, attention="explicit")
    on_ranks(ranks(2), recipe_of(SCHEDULES[schedule], pp=2), config)


REPLICAS = {
    "naive": {"replica": NaiveDDP},
    "bucketed": {"replica": BucketedDDP},
    "DDP": {"bucket_cap_mb": 0.005},  # a stage's first buckets leave while other stages still run
}


@pytest.mark.parametrize(
    ("schedule", "replica"),
    [("1F1B", "naive"), ("ZB-V", "bucketed"), ("1F1B", "DDP"), ("interleaved", "DDP"),
     ("ZB-V", "DDP")],
)  # fmt: skip
def test_with_data_parallel(ranks, schedule, replica):
    owner = partial(Replicated, **REPLICAS[replica])
    on_ranks(ranks(4), recipe_of(SCHEDULES[schedule], owner, pp=2, dp=2), GPT2)


THREE = {
    "tensor": tensor_parallel,
    "sequence": sequence_parallel,
    "sequence, chunks": partial(sequence_parallel, again=False, chunks=2),
}


@pytest.mark.parametrize(
    ("schedule", "transform"),
    [("1F1B", "tensor"), ("1F1B", "sequence, chunks"), ("ZB-V", "sequence")],
)
def test_three_axes_equal_one_process(ranks, schedule, transform):
    """Eight ranks: tied embeddings, dropout, clipping, accumulation, recomputation."""
    config = replace(GPT2, recompute="selective")
    recipe = recipe_of(SCHEDULES[schedule], transform=THREE[transform], pp=2, dp=2, tp=2)
    on_ranks(ranks(8), recipe, config)


@st.composite
def ways(draw):
    """A layout of up to 8 ranks, a schedule, an owner, a transform, and a configuration."""
    pp, dp, tp = draw(st.sampled_from(LAYOUTS))
    name = draw(st.sampled_from(list(SCHEDULES)))
    m = draw(st.integers(1, 3)) * pp
    stages = pp * (2 if name in ("interleaved", "ZB-V") else 1)
    owners = [None, *OWNERS, *(SHARDED if name in ("GPipe", "1F1B") else ())]
    owner = draw(st.sampled_from(owners)) if dp > 1 else None
    transform = draw(st.sampled_from([None, sequence_parallel])) if tp > 1 else None
    axes = draw(st.permutations([("pp", pp), ("dp", dp), ("tp", tp)]))
    config = GPTConfig(
        **SIZES,
        layers=draw(st.integers(stages, stages + 2)),
        kv_heads=draw(st.sampled_from([4, 2])),
        tied=draw(st.booleans()),
        norm=draw(st.sampled_from(["rms", "layer"])),
        positions=draw(st.sampled_from(["rotary", "learned"])),
        mlp=draw(st.sampled_from(["swiglu", "gelu"])),
        bias=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.2])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
    )
    recipe = recipe_of(SCHEDULES[name], owner, transform, **dict(axes))
    return recipe, config, m, draw(st.integers(1, 2 * m * dp))


LAYOUTS = [(2, 1, 1), (2, 2, 1), (2, 1, 2), (3, 2, 1), (2, 2, 2), (4, 2, 1), (4, 1, 2), (2, 1, 4)]
OWNERS = [partial(Replicated, replica=NaiveDDP), partial(Replicated, bucket_cap_mb=0.01), Zero1]
SHARDED = [Zero2, Zero3, partial(Zero3, reshard_after_forward=False)]


@settings(max_examples=7)
@given(way=ways())
def test_any_layout_schedule_owner_and_config(ranks, way):
    recipe, config, micro_batches, sequences = way
    on_ranks(
        ranks(recipe.layout.world_size),
        recipe,
        config,
        micro_batches=micro_batches,
        sequences=sequences,
    )
