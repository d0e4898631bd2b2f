"""The inter-operator plan: brute force, uniform cuts, and uneven models."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.models.bamba import bamba
from helpers.models.gpt import GPTConfig
from helpers.planner.alpa import alpa
from helpers.planner.inter_operator import Cost, inter_operator, submeshes
from helpers.planner.intra_operator import intra_operator
from helpers.planner.operators import operators
from helpers.planner.problem import NoPlan
from helpers.planner.strategies import ROLES, Grid
from helpers.simulate.topology import DGX_A100


@st.composite
def pipelines(draw):
    layers, devices = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    meshes = submeshes(*draw(st.sampled_from([(1, 4), (2, 2), (4, 1), (1, 1)])))
    seconds = st.one_of(st.none(), st.integers(1, 30))
    bytes = st.integers(0, 4)
    keys = [
        (start, stop, mesh)
        for start in range(layers)
        for stop in range(start + 1, layers + 1)
        for mesh in meshes
    ]
    costs = {}
    for key in keys:
        if (time := draw(seconds)) is not None:
            costs[key] = Cost(seconds=time, bytes=draw(bytes), each=draw(bytes))
    return layers, devices, meshes, costs


def by_force(layers, devices, meshes, costs, micro_batches, memory):
    """The least T of all cuts and all submeshes."""
    best = math.inf
    for count in range(1, layers + 1):
        for stops in itertools.combinations(range(1, layers), count - 1):
            ends = (0, *stops, layers)
            for chosen in itertools.product(meshes, repeat=count):
                keys = [
                    (*pair, mesh)
                    for pair, mesh in zip(itertools.pairwise(ends), chosen, strict=True)
                ]
                if sum(meshes[mesh] for mesh in chosen) != devices or not costs.keys() >= {*keys}:
                    continue
                own = [costs[key] for key in keys]
                held = [one.bytes + min(count - k, micro_batches) * one.each
                        for k, one in enumerate(own)]  # fmt: skip
                if max(held) <= memory:
                    times = [one.seconds for one in own]
                    best = min(best, sum(times) + (micro_batches - 1) * max(times))
    return best


PAIR = {(k, k + 1, (1, 1)): Cost(seconds=1, each=5) for k in (0, 1)}


@example((2, 2, submeshes(2, 1), PAIR), 1, 5)  # memory for the only micro-batch: two stages fit
@given(pipelines(), st.integers(1, 6), st.sampled_from([math.inf, 5, 8]))
@settings(deadline=None)
def test_the_pipeline_is_the_best_of_all(model, micro_batches, memory):
    layers, devices, meshes, costs = model
    expected = by_force(*model, micro_batches, memory)
    options = {"meshes": meshes, "devices": devices, "micro_batches": micro_batches}

    def stage(start, stop, mesh):
        return costs.get((start, stop, mesh))

    try:
        found = inter_operator(layers, stage, memory=memory, **options)
    except NoPlan:
        assert expected == math.inf
        return
    assert found.seconds == expected
    assert sum(found.cuts) == layers
    assert sum(meshes[mesh] for _, mesh in found.stages) == devices


def test_submeshes_are_powers_of_two_within_a_node_and_whole_nodes():
    assert submeshes(3, 4) == {(1, 1): 1, (1, 2): 2, (1, 4): 4, (2, 4): 8, (3, 4): 12}
    assert submeshes(1, 1) == {(1, 1): 1}
    assert submeshes(1, 6) == {(1, 1): 1, (1, 2): 2, (1, 6): 6}  # three times 4 do not fit 2 nodes
    config = GPTConfig(width=8, heads=4, layers=1)
    with pytest.raises(NoPlan):  # 4 GPUs along "tp" would not be on one node of 6
        alpa(config, replace(DGX_A100, nodes=2, gpus_per_node=6), **RATE | {"sequences": 3})


def uniform(times, devices, micro_batches):
    """The best plan with a device for each stage, from times of single layers."""

    def stage(start, stop, mesh):
        return Cost(seconds=sum(times[start:stop]))

    return inter_operator(len(times), stage, meshes={1: 1}, devices=devices,
                          micro_batches=micro_batches)  # fmt: skip


@pytest.mark.parametrize(
    ("times", "stages", "cuts"),
    [
        ([1] * 8, 4, (2, 2, 2, 2)),
        ([1] * 7 + [5], 2, (6, 2)),  # the head of a large vocabulary is with the last layer
        ([2] * 2 + [1] * 4, 4, (1, 1, 2, 2)),
        ([5, 1, 1, 1], 2, (1, 3)),
    ],
)
def test_equal_layers_are_cut_equally_and_others_are_not(times, stages, cuts):
    assert uniform(times, stages, 8).cuts == cuts


SMALL = {"width": 512, "heads": 8, "context": 256, "norm": "layer", "mlp": "gelu"}
RATE = {"flops_per_second": 150e12, "sequences": 1, "micro_batches": 32}


def work(config):
    """FLOPs of each block, with the model's ends."""
    last = config.layers - 1
    return [
        sum(one.flops for one in operators(config, 1, 256, (n,), first=not n, last=n == last))
        for n in range(config.layers)
    ]


def test_megatron_s_uniform_split_of_a_gpt_and_another_of_a_large_vocabulary():
    """One sequence in a micro-batch on two GPUs: a pipeline of two stages, or layers cut in two."""
    config = GPTConfig(**SMALL, layers=4, vocab=256)
    assert alpa(config, DGX_A100.of(2), **RATE).cuts == (2, 2)
    large = GPTConfig(**SMALL, layers=4, vocab=16_384)
    found = alpa(large, DGX_A100.of(2), **RATE)
    assert found.cuts == (3, 1)
    hybrid = bamba(8, attention=range(4), width=512, heads=8, kv_heads=8, mlp="none", vocab=256)
    assert uniform(work(hybrid), 2, 8).cuts == (5, 3)
    for uneven in (large, hybrid):
        times, half = work(uneven), uneven.layers // 2
        stages = [sum(times[:half]), sum(times[half:])]
        assert uniform(times, 2, 8).seconds < 0.95 * (sum(stages) + 7 * max(stages))


NODES = replace(DGX_A100, nodes=2, gpus_per_node=2)
MESHES = {  # (its nodes, GPUs of each), (dp, tp) -> GPUs
    ((1, 1), (1, 1)): 1,
    ((1, 2), (2, 1)): 2,
    ((1, 2), (1, 2)): 2,
    ((2, 2), (4, 1)): 4,
    ((2, 2), (2, 2)): 4,
}


@pytest.mark.parametrize(
    ("memory", "micro_batches", "rate", "meshes"),
    [
        (8e6, 8, 1e10, [(2, 2)]),  # "dp" joins the nodes
        (3e6, 1, 1e12, [(1, 2), (2, 1)]),  # two stages, each in a node
    ],
)
def test_a_plan_is_the_best_of_all_cuts_and_meshes(
    memory, micro_batches, rate, meshes, monkeypatch
):
    """Each stage is planned alone here; the cluster says whether a group's ranks share a node."""
    config = GPTConfig(width=64, heads=4, layers=3, vocab=3000, context=64, tied=False)
    allowed, costs = {"dp": {"batch", "sharded"}, "tp": set(ROLES) - {"sharded"}}, {}
    for start, stop in itertools.combinations(range(4), 2):
        parts = operators(config, 4, 64, range(start, stop), first=not start, last=stop == 3)
        for mesh, gpus in MESHES.items():
            dp, tp = mesh[1]
            groups = {"dp": NODES.group(range(0, gpus, tp)), "tp": NODES.group(range(tp))}
            links = {
                axis: one.rail if one.nodes > 1 else one.inside for axis, one in groups.items()
            }
            options = {"memory": memory, "micro_batches": micro_batches, "allowed": allowed}
            try:
                found = intra_operator(
                    parts, Grid(sizes={"dp": dp, "tp": tp}, links=links), **options
                )
            except NoPlan:
                continue
            computing = 3 * sum(one.flops for one in parts) / gpus / rate
            costs[start, stop, mesh] = Cost(
                seconds=computing + found.seconds, bytes=found.states, each=found.kept
            )
    options = {"sequences": 4, "micro_batches": micro_batches, "memory": memory}
    found = alpa(config, NODES, flops_per_second=rate, **options)
    assert found.seconds == pytest.approx(by_force(3, 4, MESHES, costs, micro_batches, memory))
    assert [mesh[1] for _, mesh in found.stages] == meshes
    monkeypatch.setattr("helpers.planner.alpa.inter_operator", lambda _, stage, **given: stage)
    stage = alpa(config, NODES, flops_per_second=rate, **options)
    stages = [(*pair, mesh) for pair in itertools.combinations(range(4), 2) for mesh in MESHES]
    assert {key: cost for key in stages if (cost := stage(*key))} == costs


def test_less_memory_costs_time_until_no_plan_fits():
    config = GPTConfig(**SMALL | {"width": 1024, "context": 1024}, layers=2, vocab=256)
    options = RATE | {"sequences": 2, "micro_batches": 16}
    free = alpa(config, DGX_A100.of(2), **options)
    assert [mesh for _, mesh in free.stages] == [((1, 2), (2, 1))]  # data parallel
    held, slower = free.costs[0].bytes + free.costs[0].each, free.seconds
    for share in (0.9, 0.8, 0.7, 0.6):
        found = alpa(config, DGX_A100.of(2), memory=share * held, **options)
        assert found.seconds > slower
        slower, stages = found.seconds, len(found.stages)
        flying = [cost.bytes + (stages - k) * cost.each for k, cost in enumerate(found.costs)]
        assert max(flying) <= share * held
    with pytest.raises(NoPlan):
        alpa(config, DGX_A100.of(2), memory=0.5 * held, **options)
