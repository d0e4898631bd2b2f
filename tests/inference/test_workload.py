"""Arrivals, prompts and lengths have the distributions that they should have."""

import numpy as np
import pytest

from helpers.inference.sampling import Sampling
from helpers.inference.workload import poisson


def test_the_same_seed_gives_the_same_requests():
    assert poisson(2.0, 5, seed=1) == poisson(2.0, 5, seed=1)
    assert poisson(2.0, 5, seed=1) != poisson(2.0, 5, seed=2)
    assert poisson(2.0, 0, seed=1) == []


def test_another_rate_changes_the_arrivals_alone():
    slow, fast = poisson(1.0, 50, seed=3), poisson(2.0, 50, seed=3)
    assert [r.arrival for r in slow] == pytest.approx([2 * r.arrival for r in fast])
    assert [(r.prompt, r.new_tokens) for r in slow] == [(r.prompt, r.new_tokens) for r in fast]
    assert {r.arrival for r in poisson(np.inf, 9, seed=3)} == {0.0}


def test_gaps_are_exponential():
    arrivals = np.array([r.arrival for r in poisson(4.0, 4000, seed=0, prompt=(1, 1))])
    gaps = np.diff(arrivals, prepend=0)
    assert (gaps >= 0).all()
    # The mean and the deviation of an exponential are both 1/rate; 4000 of them vary by 1.6 %.
    assert gaps.mean() == pytest.approx(0.25, rel=0.06)
    assert gaps.std() == pytest.approx(0.25, rel=0.1)


def test_lengths_are_geometric_and_cut():
    found = np.array([r.new_tokens for r in poisson(1.0, 4000, seed=0, prompt=(1, 1))])
    assert (found.min(), found.max()) == (1, 256)
    p = 1 / 64
    assert found.mean() == pytest.approx((1 - (1 - p) ** 256) / p, rel=0.06)
    assert (found <= 32).mean() == pytest.approx(1 - (1 - p) ** 32, abs=0.03)


def test_gaps_lengths_and_prompts_are_independent():
    requests = poisson(1.0, 2000, seed=0, prompt=(1, 40))
    gaps = np.diff([r.arrival for r in requests], prepend=0)
    columns = [gaps, [r.new_tokens for r in requests], [len(r.prompt) for r in requests]]
    correlations = np.corrcoef(columns)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 0.1  # four and a half standard deviations


def test_prompts():
    requests = poisson(1.0, 300, seed=0, prompt=(3, 5), vocab=7)
    assert {len(r.prompt) for r in requests} == {3, 4, 5}
    assert {token for r in requests for token in r.prompt} == set(range(7))
    assert [r.number for r in requests] == list(range(300))
    assert [r.seed for r in requests] == list(range(300))


def test_given_texts_and_sampling():
    warm = Sampling(temperature=1.0)
    requests = poisson(1.0, 40, seed=0, texts=[b"ab", b"cde"], sampling=warm)
    assert {r.prompt for r in requests} == {tuple(b"ab"), tuple(b"cde")}
    assert {r.sampling for r in requests} == {warm}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0.0}, "a rate of 0.0 arrivals a second"),
        ({"rate": float("nan")}, "a rate of nan"),
        ({"requests": -1}, "-1 requests"),
        ({"prompt": (0, 4)}, "prompts of 0 to 4 tokens"),
        ({"prompt": (5, 4)}, "prompts of 5 to 4 tokens"),
        ({"new_tokens": 0.5}, "a mean of 0.5"),
        ({"most": 0}, "at most 0"),
    ],
)
def test_impossible_numbers(options, message):
    with pytest.raises(ValueError, match=message):
        poisson(**{"rate": 1.0, "requests": 3, "seed": 0} | options)
