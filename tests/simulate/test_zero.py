"""A simulated ZeRO-3 step: by hand, its limits, and the edge that it shares with data parallel."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.plans.zero_traffic import zero_traffic
from helpers.simulate.collective_time import fastest, largest_bus_bandwidth, seconds
from helpers.simulate.data_parallel import hiding_tokens
from helpers.simulate.hardware import H100
from helpers.simulate.topology import DGX_H100, Link
from helpers.simulate.zero import zero_3_step

FLOPS = 0.4 * H100.peak()
MODEL = {"parameters": 7.5e9, "units": 32, "flops_per_second": FLOPS}
PAIR = replace(
    DGX_H100, nodes=2, gpus_per_node=1, rail=Link(alpha=0.0, bytes_per_second=1e9)
)  # a message of S bytes takes S/2 seconds per 1e9 bytes


def pair(tokens, **options):
    """Two units of 1e9 parameters: each message takes 1 s."""
    return zero_3_step(
        parameters=2e9,
        units=2,
        tokens=tokens,
        topology=PAIR,
        flops_per_second=1e12,
        algorithm="flat",
        **options,
    )


def test_a_step_by_hand_with_long_messages():
    """A unit's forward takes 0.5 s, its backward 1 s.

    Gathers end at 1 and 2, so the forward ends at 2.5. The gathers of the backward end at 3.5 and
    4.5; the first backward ends at 4.5, the second at 5.5. The reduce-scatters end at 5.5 and 6.5.
    """
    got = pair(250)
    assert (got.forward, got.backward, got.communication) == (1.0, 2.0, 6.0)
    assert got.seconds == pytest.approx(6.5)
    assert got.exposed == pytest.approx(3.5)


def test_a_step_by_hand_with_short_messages():
    """A forward takes 2 s, a backward 4 s: visible are the first gathers and the last scatter."""
    got = pair(1000)
    assert (got.forward, got.backward) == (4.0, 8.0)
    assert got.exposed == pytest.approx(1.0 + 1.0 + 1.0)


def test_one_gpu_waits_for_nothing():
    alone = zero_3_step(tokens=10, topology=DGX_H100.of(1), **MODEL)
    assert alone.communication == alone.exposed == 0


@pytest.mark.parametrize("number_bytes", [2, 4])
def test_all_messages_together_are_the_paper_s_volume(number_bytes):
    """Without latency, and over a flat ring: bytes / bandwidth."""
    got = pair(250, number_bytes=number_bytes)
    traffic = zero_traffic(2e9, 2, 3, parameter_bytes=number_bytes, gradient_bytes=number_bytes)
    assert got.communication == pytest.approx(sum(traffic.values()) / 1e9)


@given(st.floats(1, 1e5), st.sampled_from([8, 64, 1024]), st.integers(1, 100))
def test_bounds(tokens, gpus, units):
    cluster = DGX_H100.of(gpus)
    got = zero_3_step(
        parameters=7.5e9, units=units, tokens=tokens, topology=cluster, flops_per_second=FLOPS
    )
    assert got.algorithm == fastest("all_gather", 15e9 / units, cluster)
    last = seconds("reduce_scatter", 15e9 / units, cluster, got.algorithm)
    first = seconds("all_gather", 15e9 / units, cluster, got.algorithm)
    slack = 1e-9 * got.seconds
    assert max(got.computing, got.communication) <= got.seconds + slack
    assert got.seconds <= got.computing + got.communication + slack
    assert got.exposed >= first + last - slack  # nothing hides these two


def test_the_edge_is_that_of_data_parallel():
    """Below it most of the messages are visible, above it hardly any."""
    cluster = replace(
        DGX_H100.of(64),
        inside=replace(DGX_H100.inside, alpha=0.0),
        rail=replace(DGX_H100.rail, alpha=0.0),
    )
    bandwidth = largest_bus_bandwidth("all_gather", cluster)
    edge = hiding_tokens(flops_per_second=FLOPS, bus_bandwidth=bandwidth, ranks=64)
    model = MODEL | {"units": 1000, "topology": cluster, "algorithm": "rails"}
    above, below = (zero_3_step(tokens=k * edge, **model) for k in (1.05, 0.5))
    assert above.efficiency > 0.99
    assert below.efficiency == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    "wrong",
    [
        {"units": 0},
        {"parameters": 0},
        {"tokens": 0},
        {"flops_per_second": -1},
        {"number_bytes": 0},
        {"algorithm": "magic"},
    ],
)
def test_nonsense_is_refused(wrong):
    told = "none of" if "algorithm" in wrong else f"{next(iter(wrong))} must be positive"
    with pytest.raises(ValueError, match=told):
        zero_3_step(**{"tokens": 10, "topology": DGX_H100.of(8), **MODEL, **wrong})
