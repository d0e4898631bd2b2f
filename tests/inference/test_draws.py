"""A request's random numbers: uniform, and a function of seed, place and use alone."""

import numpy as np
from scipy import stats

from helpers.inference.draws import uniform


def test_each_argument_changes_the_number_and_nothing_else_does():
    base = uniform(3, 5, 1)
    assert uniform(3, 5, 1) == base
    others = {uniform(3, 5), uniform(3, 5, 2), uniform(3, 6, 1), uniform(4, 5, 1), uniform(5, 3, 1)}
    assert len(others | {base}) == 6
    assert uniform(3, 5) == uniform(3, 5, 0)
    assert uniform(2**40 + 3, 5) != uniform(3, 5)


def test_the_numbers_are_uniform_over_seeds_places_and_uses():
    for numbers in (
        [uniform(seed, 7) for seed in range(2000)],
        [uniform(7, place) for place in range(2000)],
        [uniform(7, 7, use) for use in range(2000)],
    ):
        assert 0 <= min(numbers) < 0.01
        assert 0.99 < max(numbers) < 1
        # the seeds are fixed, so these are no chances but facts
        assert stats.kstest(numbers, "uniform").pvalue > 0.01
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.06


def test_all_53_bits_are_used():
    numbers = [int(uniform(seed, 0) * 2**53) for seed in range(400)]
    for bit in range(53):
        share = np.mean([number >> bit & 1 for number in numbers])
        assert 0.4 < share < 0.6, bit
