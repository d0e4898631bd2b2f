"""ZeRO's traffic: the paper's 2, 2 and 3 P, and the bytes of ring collectives."""

import pytest

from helpers.comm.volume import sent
from helpers.plans.zero_traffic import zero_traffic

# Rajbhandari et al. 2020, arXiv:1910.02054, section 7: numbers per parameter and step.
PUBLISHED = {0: 2, 1: 2, 2: 2, 3: 3}


@pytest.mark.parametrize(("stage", "times"), PUBLISHED.items())
@pytest.mark.parametrize("world", [1, 2, 3, 64])
def test_the_paper_s_volume(stage, times, world):
    numbers = sum(zero_traffic(1e6, world, stage).values()) / 2
    assert numbers == pytest.approx(times * 1e6 * (world - 1) / world)


@pytest.mark.parametrize("stage", PUBLISHED)
def test_each_collective_is_a_ring(stage):
    """Per call, against the formulas of `comm.volume`, for one of each that the paper names."""
    traffic = zero_traffic(1200, 4, stage, parameter_bytes=4, gradient_bytes=4)
    for call, nbytes in traffic.items():
        calls = 2 if (stage, call) == (3, "all_gather") else 1
        assert nbytes == calls * sent(call, 4800, 4, backend="nccl")


@pytest.mark.parametrize(("stage", "numbers"), [(0, 2), (1, 2), (2, 5 + 1), (3, 3 * 5)])
def test_five_micro_batches(stage, numbers):
    traffic = zero_traffic(1200, 4, stage, micro_batches=5)
    assert sum(traffic.values()) == numbers * 2 * 900


@pytest.mark.parametrize(
    ("options", "gathers"),
    [
        ({}, 2),
        ({"reshard": False}, 1),
        ({"micro_batches": 2}, 4),
        ({"reshard": False, "micro_batches": 2}, 2),
    ],
)
def test_gathers_of_stage_3(options, gathers):
    assert zero_traffic(1200, 4, 3, **options)["all_gather"] == gathers * 2 * 900


def test_messages_of_two_widths():
    assert zero_traffic(1200, 4, 0, parameter_bytes=1, gradient_bytes=4) == {
        "all_reduce": 2 * 4 * 900
    }
    for stage in (1, 2):
        traffic = zero_traffic(1200, 4, stage, gradient_bytes=4)
        assert traffic == {"reduce_scatter": 4 * 900, "all_gather": 2 * 900}
    traffic = zero_traffic(1200, 4, 3, gradient_bytes=4)
    assert traffic == {"reduce_scatter": 4 * 900, "all_gather": 2 * 2 * 900}


@pytest.mark.parametrize(
    ("world", "stage", "micro_batches", "why"),
    [
        (2, 4, 1, "1, 2 and 3, not 4"),
        (0, 1, 1, "at least one rank, not 0"),
        (2, 2, 0, "at least one micro-batch, not 0"),
    ],
)
def test_nonsense_is_refused(world, stage, micro_batches, why):
    with pytest.raises(ValueError, match=why):
        zero_traffic(1, world, stage, micro_batches=micro_batches)
