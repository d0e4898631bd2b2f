"""Data parallel steps on a cluster: limits by hand, and the closed form beside the simulation."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.simulate.collective_time import ALGORITHMS, fastest, largest_bus_bandwidth, seconds
from helpers.simulate.data_parallel import MIB, hiding_tokens, step, strong, weak
from helpers.simulate.hardware import H100
from helpers.simulate.topology import DGX_H100, Link

FLOPS = 0.4 * H100.peak()
MODEL = {"parameters": 1.5e9, "flops_per_second": FLOPS}
GPUS = (8, 16, 64, 1024)


def test_a_step_by_hand():
    """2 buckets of 1 GB on 2 nodes: the first hides in part, the second not at all."""
    cluster = replace(
        DGX_H100,
        nodes=2,
        gpus_per_node=1,
        rail=Link(alpha=0.0, bytes_per_second=1e9),
    )
    got = step(
        parameters=1e9,
        tokens=250,
        topology=cluster,
        flops_per_second=1e12,
        bucket_bytes=1e9,
        algorithm="flat",
    )
    assert (got.forward, got.backward) == (0.5, 1.0)
    assert got.communication == 2.0  # 2 (N-1)/N = 1: a second for each bucket
    # the first is ready at 0.5 and sent at 1.5, the second then takes until 2.5
    assert (got.exposed, got.seconds, got.computing) == (1.5, 3.0, 1.5)
    assert got.efficiency == 0.5


def test_one_gpu_waits_for_nothing():
    alone = step(tokens=10, topology=DGX_H100.of(1), **MODEL)
    assert alone.communication == alone.exposed == 0
    assert alone.efficiency == 1


def test_pytorch_s_buckets_unless_you_choose():
    """25 MiB of bf16 gradients, by the algorithm that is fastest for one bucket."""
    cluster = DGX_H100.of(64)
    count = math.ceil(3e9 / (25 * 2**20))
    best = fastest("all_reduce", 3e9 / count, cluster)
    assert best != fastest("all_reduce", 1e3, cluster) or best != "flat"
    given = {"bucket_bytes": 25 * 2**20, "gradient_bytes": 2, "algorithm": best}
    found = step(tokens=1000, topology=cluster, **MODEL)
    assert found == step(tokens=1000, topology=cluster, **MODEL, **given)
    assert found.algorithm == best
    message = seconds("all_reduce", 3e9 / count, cluster, best)
    assert found.communication == pytest.approx(count * message)


@given(
    st.floats(1, 1e5),
    st.sampled_from(GPUS),
    st.sampled_from([1e6, 25 * MIB, 4e8]),
    st.sampled_from([None, *ALGORITHMS]),
)
def test_exposed_lies_between_its_bounds(tokens, gpus, cap, algorithm):
    got = step(
        tokens=tokens, topology=DGX_H100.of(gpus), bucket_bytes=cap, algorithm=algorithm, **MODEL
    )
    count = math.ceil(3e9 / cap)
    last = got.communication / count
    slack = 1e-12 + 1e-9 * got.communication
    assert got.exposed >= max(last, got.communication - got.backward) - slack
    assert got.exposed <= got.communication + slack
    assert 0 < got.efficiency <= 1


@pytest.mark.parametrize("gradient_bytes", [2, 4])
@pytest.mark.parametrize(("gpus", "algorithm"), [(1024, "rails"), (64, "flat"), (16, "rails")])
@pytest.mark.parametrize("parameters", [1.5e9, 7e9])
def test_the_closed_form(gpus, algorithm, gradient_bytes, parameters):
    """Without latency, in small buckets: messages start to stick out where the formula says."""
    cluster = DGX_H100.of(gpus)
    cluster = replace(
        cluster, inside=replace(cluster.inside, alpha=0.0), rail=replace(cluster.rail, alpha=0.0)
    )
    bus = largest_bus_bandwidth("all_reduce", cluster, algorithm)
    edge = hiding_tokens(
        flops_per_second=FLOPS, bus_bandwidth=bus, ranks=gpus, gradient_bytes=gradient_bytes
    )

    def exposed(tokens, count=2000):
        got = step(
            parameters=parameters,
            tokens=tokens,
            topology=cluster,
            flops_per_second=FLOPS,
            bucket_bytes=parameters * gradient_bytes / count,
            gradient_bytes=gradient_bytes,
            algorithm=algorithm,
        )
        return got.exposed / got.communication * count  # in buckets

    assert exposed(1.01 * edge) == pytest.approx(1, abs=0.01)  # the last bucket alone
    assert exposed(0.99 * edge) == pytest.approx(0.01 * 2000 + 1, rel=0.05)
    assert exposed(edge / 2) == pytest.approx(1000, rel=0.01)


def test_flops_over_bandwidth():
    """bf16 and many ranks: F / W; twice that with fp32; half of that on two ranks."""
    some = {"flops_per_second": 400e12, "bus_bandwidth": 400e9}
    assert hiding_tokens(**some, ranks=math.inf) == 1000
    assert hiding_tokens(**some, ranks=math.inf, gradient_bytes=4) == 2000
    assert hiding_tokens(**some, ranks=2) == 500
    assert hiding_tokens(**some, ranks=1) == 0


def test_weak_keeps_strong_shares():
    steps = weak(GPUS, tokens=8192, topology=DGX_H100, **MODEL)
    assert list(steps) == list(GPUS)
    assert len({each.computing for each in steps.values()}) == 1
    shared = strong(GPUS, global_tokens=8 * 8192, topology=DGX_H100, **MODEL)
    assert shared[8] == steps[8]
    for gpus, each in shared.items():
        assert each.computing == pytest.approx(steps[8].computing * 8 / gpus)
        assert steps[gpus].communication == each.communication
    assert shared[1024].efficiency < shared[8].efficiency


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": 0},
        {"tokens": -1},
        {"flops_per_second": 0},
        {"bucket_bytes": 0},
        {"gradient_bytes": float("nan")},
    ],
)
def test_senseless_numbers(change):
    options = {"tokens": 10, "topology": DGX_H100, **MODEL} | change
    with pytest.raises(ValueError, match=next(iter(change))):
        step(**options)


@pytest.mark.parametrize("name", ["flops_per_second", "bus_bandwidth", "ranks", "gradient_bytes"])
@pytest.mark.parametrize("number", [0, -1])
def test_senseless_numbers_of_the_edge(name, number):
    good = {"flops_per_second": 1, "bus_bandwidth": 1, "ranks": 8, "gradient_bytes": 2}
    with pytest.raises(ValueError, match=f"{name} must be positive, not {number}"):
        hiding_tokens(**good | {name: number})
