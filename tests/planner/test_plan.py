"""A front of plans; what published runs chose, and where this planner disagrees with them."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.models.shape import GPTShape
from helpers.planner.plan import Plans, candidates, front, plan, shares
from helpers.simulate.hardware import H100
from helpers.simulate.kernels import Rates
from helpers.simulate.step_time import step_time
from helpers.simulate.topology import DGX_A100, DGX_H100

FITS = 80e9  # bytes of an A100 or an H100
SMALL = GPTShape.preset("124M")


def test_all_factors():
    assert list(shares(4, 2)) == [(1, 4), (2, 2), (4, 1)]
    cubes = itertools.product(range(1, 13), repeat=3)
    assert [*shares(12, 3)] == [sizes for sizes in cubes if sizes[0] * sizes[1] * sizes[2] == 12]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_the_front_has_what_nothing_beats(pairs):
    points = [SimpleNamespace(seconds=s, bytes=b) for s, b in pairs]
    found = [(point.seconds, point.bytes) for point in front(points)]
    beaten = {
        one
        for one in pairs
        for two in pairs
        if two != one and two[0] <= one[0] and two[1] <= one[1]
    }
    assert found == sorted(set(pairs) - beaten)


def test_every_point_is_a_plan_of_the_whole_cluster_with_its_own_step():
    found = plan(SMALL, DGX_A100.of(8), 32)
    assert found.tried > 100
    for faster, smaller in itertools.pairwise(found.points):
        assert faster.seconds < smaller.seconds
        assert faster.bytes > smaller.bytes
    for point in found.points:
        assert point.plan.layout.world_size == 8
        assert point.step == step_time(point.config, point.plan, DGX_A100.of(8))
        assert point.plan.layout.title() in point.title()
    middle = found.points[len(found.points) // 2]
    assert found.within(middle.bytes) is middle
    held = plan(SMALL, DGX_A100.of(8), 32, memory=middle.bytes).points
    assert held == found.points[len(found.points) // 2 :]
    with pytest.raises(ValueError, match=r"no plan fits into 1 bytes; the smallest needs"):
        found.within(1)


def test_what_is_tried():
    """ZeRO needs replicas, and its stages 2 and 3 no pipeline. Chunks need one, and layers."""
    stages, chunks = {}, {}
    for one, _ in candidates(SMALL, DGX_A100.of(8), 32, 64, ("pp", "dp", "tp"), {}):
        p, d = one.ranks("pp"), one.ranks("dp")
        stages.setdefault((p > 1, d > 1), set()).add(one.zero)
        chunks.setdefault(p, set()).add(one.chunks)
    both = {(True, True): {0, 1}, (True, False): {0}, (False, False): {0}}
    assert stages == both | {(False, True): {0, 1, 2, 3}}
    assert chunks == {1: {1}, 2: {1, 2, 4}, 4: {1, 2}, 8: {1}}  # of 12 layers


def test_options_that_are_not_chosen():
    found = plan(SMALL, DGX_A100.of(4), 8, zero=0, recompute="full", micro=2, axes=("dp", "cp"))
    for point in found.points:
        assert (point.plan.zero, point.plan.micro, point.config.recompute) == (0, 2, "full")
        assert set(point.plan.layout.axes) == {"dp", "cp"}
    assert {point.plan.chunks for point in plan(SMALL, DGX_A100.of(4), 8, chunks=2).points} == {2}
    with pytest.raises(ValueError, match="no plan cuts 7 sequences and the model over 4 GPUs"):
        plan(SMALL, DGX_A100.of(4), 7, axes=("dp",))
    with pytest.raises(ValueError, match="the last one that was tried: the mixers are mamba2"):
        plan(replace(SMALL, mixer="mamba2"), DGX_A100.of(4), 8)


def test_a_front_draws_itself():
    assert plan(SMALL, DGX_A100.of(4), 8).plot() is not None
    assert isinstance(plan(SMALL, DGX_A100.of(1), 8), Plans)


def megatron(width, heads, layers=32):
    """A model of Narayanan et al. 2021, section 5.4."""
    return GPTShape(
        vocab=51_200, context=2048, width=width, layers=layers, heads=heads, norm="layer",
        positions="learned", mlp="gelu", bias=True,
    )  # fmt: skip


OLD = {"recompute": "full", "chunks": 1, "sequence": False, "zero": 0}  # as measured in the paper


@pytest.mark.parametrize("sequences", [32, 128])
def test_takeaway_1_tensor_parallelism_fills_a_node_and_pipelines_join_nodes(sequences):
    """Figure 13: 162 billion parameters on 64 GPUs are fastest with t = p = 8."""
    found = plan(
        megatron(20_480, 128), DGX_A100.of(64), sequences, axes=("pp", "tp"), micro=1, **OLD
    )
    best = found.points[0].plan
    assert (best.ranks("pp"), best.ranks("tp")) == (8, 8)


@pytest.mark.parametrize("sequences", [128, 512])
def test_takeaway_2_the_least_model_parallelism_that_fits_and_data_parallelism_for_the_rest(
    sequences,
):
    """Figures 14 and 15: 5.9 billion parameters on 64 GPUs.

    Less memory makes the step slower, and only then are pipeline and tensor parallelism chosen.
    """
    found = plan(megatron(3840, 32), DGX_A100.of(64), sequences, micro=1, **OLD)
    shared = [64 // point.plan.ranks("dp") for point in found.points]
    assert shared == sorted(shared)
    assert found.within(FITS).plan.ranks("dp") >= 32


def test_takeaway_3_the_best_micro_batch_depends_on_the_batch():
    """Figure 16: 91 billion parameters with t = p = 8 are fastest with b = 2.

    The planner agrees with 512 sequences. With 128 it chooses b = 1, by 1 %: the paper says 2.
    """
    best = {}
    for sequences in (128, 512):
        times = {}
        for micro in (1, 2, 4, 8):
            found = plan(megatron(15_360, 128), DGX_A100.of(64), sequences, axes=("pp", "tp"),
                         micro=micro, **OLD)  # fmt: skip
            times[micro] = next(p.seconds for p in found.points if p.plan.ranks("tp") == 8)
        best[sequences] = min(times, key=times.get)
        assert times[2] < 1.03 * min(times.values())
        assert times[8] > times[2]
    assert best[512] == 2


LLAMA = GPTShape.preset("405B")


@pytest.mark.parametrize(
    ("gpus", "sequences", "teraflops"), [(8192, 2048, 430), (16_384, 2048, 400)]
)
def test_llama_3_table_4(gpus, sequences, teraflops):
    """Grattafiori et al. 2024, table 4: tp 8, pp 16, 430 and 400 TFLOP/s without recomputation.

    Where they disagree: the paper's own plan keeps more activations than fit here, so that this
    planner recomputes. Without interleaving it chooses the paper's layout.
    """
    known = {"zero": 1, "micro": 1}
    rates = Rates(processor=H100, multiprocessors=132)
    found = plan(LLAMA, DGX_H100.of(gpus), sequences, rates=rates, chunks=1, **known)
    best = found.within(FITS)
    assert (best.plan.ranks("tp"), best.plan.ranks("pp")) == (8, 16)
    assert best.config.recompute == "full"
    free = plan(LLAMA, DGX_H100.of(gpus), sequences, rates=rates, **known)
    paper = 6 * 405e9 * sequences * 8192 / gpus / teraflops / 1e12
    assert free.points[0].seconds == pytest.approx(paper, rel=0.15)
    assert free.points[0].bytes > FITS
