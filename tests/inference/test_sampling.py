"""Probabilities beside transformers' own; choices that follow them exactly; clear refusals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from helpers.inference.sampling import (
    NotANumber,
    Sampling,
    are_numbers,
    choose,
    pick,
    probabilities,
    uniform,
)


def some_logits(rows=3, vocab=11, seed=0, size=3.0):
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(rows, vocab, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 2, 5, 11, 40])
@pytest.mark.parametrize("top_p", [None, 0.0, 0.2, 0.7, 0.95, 1.0])
def test_probabilities_are_those_of_transformers(temperature, top_k, top_p):
    logits = some_logits()
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p is not None:
        expected = TopPLogitsWarper(top_p)(None, expected)
    found = probabilities(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    torch.testing.assert_close(found, expected.softmax(-1), rtol=0, atol=1e-12)


@given(
    seed=st.integers(0, 50),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.none() | st.floats(0, 1),
    temperature=st.floats(0, 100),
)
def test_every_sampling_gives_probabilities(seed, top_k, top_p, temperature):
    logits = some_logits(seed=seed)
    found = probabilities(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(3).double(), rtol=0, atol=1e-12)
    assert (found.gather(-1, logits.argmax(-1, keepdim=True)) > 0).all()
    assert ((found > 0).sum(-1) <= (top_k or 11)).all()


def test_a_temperature_near_zero_is_greedy_and_a_large_one_is_uniform():
    logits = some_logits()
    greedy = probabilities(logits, Sampling())
    assert torch.equal(greedy.argmax(-1), logits.argmax(-1))
    assert torch.equal(greedy.sum(-1), torch.ones(3).double())
    tiny = probabilities(logits, Sampling(temperature=1e-300))
    torch.testing.assert_close(tiny, greedy, rtol=0, atol=0)
    hot = probabilities(logits, Sampling(temperature=1e9))
    torch.testing.assert_close(hot, torch.full((3, 11), 1 / 11).double(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1, top_k=2), [0.5, 0.5, 0, 0]),
        (Sampling(temperature=1, top_p=0.3), [0.5, 0.5, 0, 0]),
        (Sampling(temperature=1, top_p=0.25), [1, 0, 0, 0]),
        (Sampling(temperature=1, top_p=0.75), [1 / 3, 1 / 3, 1 / 3, 0]),
        (Sampling(temperature=1, top_k=3, top_p=0.5), [0.5, 0.5, 0, 0]),
        (Sampling(temperature=1, top_p=0), [1, 0, 0, 0]),
        (Sampling(), [1, 0, 0, 0]),
    ],
    ids=str,
)
def test_of_equal_tokens_the_first_stay(sampling, expected):
    found = probabilities(torch.zeros(1, 4, dtype=torch.float64), sampling)
    assert found[0].tolist() == pytest.approx(expected, abs=1e-15)
    many = probabilities(torch.zeros(1, 5000), Sampling(temperature=1, top_k=9))
    assert many[0].nonzero()[:, 0].tolist() == list(range(9))


def test_top_p_of_one_drops_nothing_however_small():
    logits = torch.tensor([[0.0] + [-50.0] * 9])  # the first one's probability rounds to 1
    assert (probabilities(logits, Sampling(temperature=1, top_p=1)) > 0).all()
    assert (probabilities(logits, Sampling(temperature=1)) > 0).all()


def test_excluded_tokens_are_never_chosen():
    logits = torch.tensor([[-math.inf, 1.0, -math.inf, 0.0]])
    found = probabilities(logits, Sampling(temperature=1))
    assert (found[0, [0, 2]] == 0).all()
    assert are_numbers(logits).tolist() == [True]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.1}, "temperature must be 0 .greedy. or a positive number, not -0.1"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": 0}, "top_k must be a whole number from 1, or None, not 0"),
        ({"top_k": 2.0}, "top_k"),
        ({"top_p": -0.1}, r"top_p must be in \[0, 1\], or None, not -0.1"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
    ],
    ids=str,
)
def test_values_out_of_range(values, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**values)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1)])
def test_logits_that_are_no_numbers_are_named(bad, sampling):
    logits = some_logits(4)
    logits[1, 3] = bad
    logits[3] = -math.inf
    assert are_numbers(logits).tolist() == [True, False, True, False]
    for refused in (
        lambda: probabilities(logits, sampling),
        lambda: choose(logits, sampling, [0] * 4, [0] * 4),
    ):
        with pytest.raises(NotANumber, match=r"sequence 1, 3 of the batch: the logits") as caught:
            refused()
        assert caught.value.sequences == [1, 3]


def test_picking_inverts_the_cumulative_distribution():
    """Evenly spaced draws give each token its share, up to one draw at each edge."""
    weights = probabilities(some_logits(1), Sampling(temperature=1, top_k=7))
    draws = [(n + 0.5) / 5000 for n in range(5000)]
    found = pick(weights.expand(5000, 11), draws)
    shares = found.bincount(minlength=11).double() / 5000
    torch.testing.assert_close(shares, weights[0], rtol=0, atol=1 / 5000 + 1e-9)
    assert (found.diff() >= 0).all()


def test_picking_at_the_ends_gives_a_possible_token():
    weights = torch.tensor([[0.0, 0.0, 0.3, 0.7, 0.0]] * 2, dtype=torch.float64)
    assert pick(weights, [0.0, 1 - 2**-53]).tolist() == [2, 3]
    # rounding: the draw times the total is the total itself
    small = torch.full((1, 3), 5e-324, dtype=torch.float64)
    small[0, 2] = 0
    assert pick(small, [1 - 2**-53]).tolist() == [1]
    assert pick(7 * weights, [0.0, 0.31]).tolist() == [2, 3]


def test_a_choice_depends_on_its_seed_and_place_and_not_on_the_batch():
    logits = some_logits(6, size=1.0)
    samplings = [
        Sampling(temperature=1),
        Sampling(),
        Sampling(temperature=1, top_k=3),
        Sampling(temperature=1),
        Sampling(temperature=2.0),
        Sampling(temperature=1),
    ]
    seeds, places = [4, 4, 9, 11, 4, 2**63], [0, 3, 8, 2, 1000, 5]
    together = choose(logits, samplings, seeds, places).tolist()
    for row in range(6):
        here = slice(row, row + 1)
        alone = choose(logits[here], samplings[row], seeds[here], places[here])
        assert alone.tolist() == [together[row]]
        if samplings[row] != Sampling():
            weights = probabilities(logits[here], samplings[row])
            assert pick(weights, [uniform(seeds[row], places[row])]).tolist() == alone.tolist()
    assert together[1] == logits[1].argmax()
    alike = logits[:1].expand(40, 11)
    assert len(set(choose(alike, Sampling(temperature=1), range(40), [0] * 40).tolist())) > 3
    assert len(set(choose(alike, Sampling(temperature=1), [0] * 40, range(40)).tolist())) > 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_and_one_token_and_no_sequence(dtype):
    logits = some_logits().to(dtype)
    found = probabilities(logits, Sampling(temperature=1))
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, logits.double().softmax(-1), rtol=0, atol=1e-12)
    one = choose(logits[:, :1], Sampling(temperature=1), [1, 2, 3], [0, 0, 0])
    assert one.dtype is torch.int64
    assert one.tolist() == [0, 0, 0]
    assert choose(logits[:0], Sampling(temperature=1), [], []).tolist() == []


def test_lists_of_another_length():
    with pytest.raises(ValueError, match="3 sequences, but 2 samplings, 3 seeds and 1 positions"):
        choose(some_logits(), [Sampling(), Sampling()], [0, 0, 0], [0])


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
