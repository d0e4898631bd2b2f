"""Stochastic rounding: the solution passes; each common mistake gets its own hint."""

import pytest
import torch

from helpers import check
from notebooks.solutions import week08
from tests.check.asked import asked, drawn_anew


def by_bits(low=0, high=2**16, seeded=True, sign=1):
    def solve(x, generator):
        noise = torch.randint(
            low, high, x.shape, dtype=torch.int32, generator=generator if seeded else None
        )
        kept = (x.view(torch.int32) + sign * noise) & -(2**16)
        return kept.view(torch.float32).bfloat16()

    return solve


def coin(x, generator):
    """Either neighbour, whatever the distance."""
    bits = x.view(torch.int32)
    up = torch.rand(x.shape, generator=generator) < 0.5
    exact = (bits & (2**16 - 1)) == 0
    kept = (bits & -(2**16)) + (up & ~exact) * 2**16
    return kept.int().view(torch.float32).bfloat16()


def farther(x, generator):
    """The chance of the other neighbour."""
    bits = x.view(torch.int32)
    rest = bits & (2**16 - 1)
    up = torch.rand(x.shape, generator=generator) < 1 - rest / 2**16
    return ((bits & -(2**16)) + (up & (rest != 0)) * 2**16).int().view(torch.float32).bfloat16()


def away(x, generator):
    bits = x.view(torch.int32)
    up = (bits & (2**16 - 1)) != 0
    return ((bits & -(2**16)) + up * 2**16).int().view(torch.float32).bfloat16()


def one_is_nan(x, generator):
    answer = week08.round_stochastically(x, generator)
    answer[-1] = torch.nan
    return answer


def test_a_small_bias_is_found():
    """Three of a hundred numbers too many are rounded up."""
    assert check.round_stochastically(by_bits()), "without a bias it passes"
    verdict = check.round_stochastically(by_bits(low=2000))
    assert "were rounded up, and should be" in verdict.finding


def test_the_solution_passes():
    verdict = check.round_stochastically(week08.round_stochastically)
    assert verdict, verdict


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda x, generator: x.bfloat16(), "rounding to the nearest"),
        (by_bits(high=1), "toward zero"),
        (by_bits(high=2**15), "The chance to round up"),
        (by_bits(high=2**17), "one of the two neighbours"),
        (one_is_nan, "one of the two neighbours"),
        (by_bits(seeded=False), "from the generator"),
        (by_bits(low=2**16 - 1), "away from zero"),
        (coin, "equally frequent"),
        (farther, "farther neighbour"),
        (away, "away from zero"),
        (lambda x, generator: x, "torch.bfloat16"),
        (lambda x, generator: None, "torch.bfloat16"),
        (lambda x, generator: x[:1].bfloat16(), "each number"),
    ],
)
def test_each_mistake_is_told(mistake, hint):
    verdict = check.round_stochastically(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.round_stochastically, week08.round_stochastically))
