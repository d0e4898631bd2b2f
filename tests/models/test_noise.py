"""Noise depends only on the counter, and it is normal."""

import math

import pytest
import torch

from helpers.models.dropout import START, counter, mix, normal

SIGMAS = 5  # the allowed distance of a statistic from its mean, for the fixed counters below


@pytest.mark.parametrize("along", [0, 1, 2], ids=["seed", "step", "number"])
def test_the_numbers_are_standard_normal(along):
    numbers = [7, 7, 7]
    numbers[along] = torch.arange(20_000)
    x = normal(counter(*numbers), 16)
    assert x.dtype == torch.float64
    assert x.isfinite().all()
    n = x.numel()
    # the moments of a normal number: 0, 1, 0, 3; their variances: 1, 2, 15, 96
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean().item() - mean) < SIGMAS * (variance / n) ** 0.5
    inside = torch.special.ndtr(x).flatten().sort().values
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    assert (inside - steps).abs().max() < 2 / n**0.5  # Kolmogorov and Smirnov: p is 0.0007


def test_channels_and_neighbours_know_nothing_of_each_other():
    x = normal(counter(1, 2, torch.arange(20_000)), 8)
    for y, z in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1]), (x[:, ::2], x[:, 1::2])):
        assert abs((y * z).mean().item()) < SIGMAS / y.numel() ** 0.5
        assert abs((y**2 * z**2).mean().item() - 1) < SIGMAS * (8 / y.numel()) ** 0.5


def test_an_example_has_the_same_numbers_in_every_batch():
    whole = normal(counter(3, 4, torch.arange(10)), 5)
    assert torch.equal(normal(counter(3, 4, torch.tensor([8, 2])), 5), whole[[8, 2]])
    assert normal(counter(3, 4, torch.arange(0)), 5).shape == (0, 5)


def test_even_a_hash_of_zero_gives_a_finite_number():
    key = mix(START)  # mixed with channel 0, it is 0, and the hash of 0 is 0
    largest = normal(torch.tensor([key]), 3)[0, 0].abs().item()
    assert largest <= (64 * math.log(2)) ** 0.5  # √(-2 ln 2⁻³²) is 6.66
