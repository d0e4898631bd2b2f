"""Masks and noise depend only on the counter: statistics, and the same training on any cut."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.data.batch import random_batch
from helpers.models.dropout import LOW, START, counter, dropout, mix, normal
from helpers.models.gpt import GPTConfig, build
from helpers.models.shape import CHOICES

CONFIG = GPTConfig(vocab=31, context=8, width=16, layers=2, heads=4, dropout=0.3)
NUMBERS = ("seed", "step", "site", "sequence", "place")
SIGMAS = 5  # the allowed distance of a count from its mean, for the fixed counters below


def mask(rate=0.5, channels=64, **numbers) -> torch.Tensor:
    """The channels' masks, 1 (kept) or 0 (dropped), for numbers that broadcast."""
    key = counter(*(torch.as_tensor(numbers.get(name, 0)) for name in NUMBERS))
    ones = torch.ones(*key.shape, channels, dtype=torch.float64)
    return (dropout(ones, rate, key) != 0).double()


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("along", NUMBERS)
def test_as_many_are_dropped_as_asked(along, rate):
    kept = mask(rate, **{along: torch.arange(2000)})
    sigma = (rate * (1 - rate) / kept.numel()) ** 0.5
    assert abs(1 - kept.mean().item() - rate) < SIGMAS * sigma
    # the rate holds in every channel, and for every value of the number
    for dim in (0, 1):
        off = (1 - kept.mean(dim) - rate).abs().max().item()
        assert off < SIGMAS * (rate * (1 - rate) / kept.shape[dim]) ** 0.5 + 1 / kept.shape[dim]


@pytest.mark.parametrize("along", NUMBERS)
@pytest.mark.parametrize("apart", [1, 2, 3, 16, 256])
def test_neighbours_know_nothing_of_each_other(along, apart):
    """Masks of neighbouring numbers, or neighbouring channels, are not correlated."""
    signs = 2 * mask(0.5, **{along: torch.arange(2000)}) - 1
    far = (signs[apart:] * signs[:-apart]).mean().item()
    assert abs(far) < SIGMAS / signs[apart:].numel() ** 0.5
    if apart < 64:
        far = (signs[:, apart:] * signs[:, :-apart]).mean().item()
        assert abs(far) < SIGMAS / signs[:, apart:].numel() ** 0.5


def test_each_number_counts_and_their_order_does():
    keys = [counter(*numbers) for numbers in product((0, 1, 2**32, -1), repeat=4)]
    assert len(set(keys)) == len(keys)
    assert counter(1, 2) != counter(2, 1) != counter(1, 2, 0)
    assert all(0 <= key <= LOW for key in keys)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, LOW))
def test_ints_and_tensors_give_the_same_key(number, other):
    assert counter(torch.tensor(number), other).item() == counter(number, other)
    assert mix(torch.tensor(other)).item() == mix(other)


def test_mix_is_the_published_hash_and_a_bijection():
    # computed by hand, in 32 bits
    x = 0xDEADBEEF
    for _ in range(2):
        x = ((x >> 16) ^ x) * 0x45D9F3B % 2**32
    assert mix(0xDEADBEEF) == (x >> 16) ^ x
    some = torch.arange(1 << 18) * 16381
    assert mix(some).unique().numel() == some.numel()


def test_what_stays_is_scaled_and_gradients_go_the_same_way():
    x = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    key = counter(0, torch.arange(3)[:, None], torch.arange(5))
    y = dropout(x, 0.25, key)
    y.sum().backward()
    kept = y != 0
    assert torch.equal(y[kept], x[kept] / 0.75)
    assert torch.equal(x.grad, kept.double() / 0.75)
    assert dropout(x.bfloat16(), 0.25, key).dtype is torch.bfloat16


def gradients(model, batches):
    model.zero_grad()
    total = sum(model.loss(batch)[0] for batch in batches)
    total.backward()
    return total.item(), {name: p.grad.clone() for name, p in model.named_parameters()}


def differ(ours, theirs) -> float:
    return max((ours[name] - theirs[name]).abs().max().item() for name in theirs)


def test_every_cut_of_a_batch_has_the_masks_of_the_whole():
    model = build(CONFIG, 3, torch.float64)
    batch = replace(random_batch(0, 7, 8, 31), step=5)
    loss, whole = gradients(model, [batch])
    shards = [batch.shard(rank, 3) for rank in range(3)]
    for cut in (shards, batch.micro(4), [m for s in shards for m in s.micro(2)]):
        found, parts = gradients(model, cut)
        assert found == pytest.approx(loss, abs=1e-12)
        assert differ(parts, whole) < 1e-12
    # a cut by places, as in context parallelism: compared before the attention
    places = torch.tensor([1, 4, 7])
    whole = model.locate(batch.tokens, numbers=batch.numbers, step=5)
    some = model.locate(batch.tokens[:, places], places, batch.numbers, 5)
    assert torch.equal(some.key, whole.key[:, places])


def test_another_seed_step_or_place_in_the_batch_has_other_masks():
    model = build(CONFIG, 3, torch.float64)
    batch = random_batch(0, 7, 8, 31)
    losses = [gradients(model, [batch])[0]]
    losses.append(gradients(model, [replace(batch, step=1)])[0])
    losses.append(gradients(model, [replace(batch, numbers=batch.numbers + 1)])[0])
    model.seed = 4
    losses.append(gradients(model, [batch])[0])
    assert len(set(losses)) == 4


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("attention", CHOICES["attention"])
def test_recomputing_changes_no_bit(recompute, attention):
    config = replace(CONFIG, attention=attention)
    batch = random_batch(0, 3, 8, 31)
    kept = gradients(build(config), [batch])
    again = gradients(build(replace(config, recompute=recompute)), [batch])
    assert kept[0] == again[0]
    assert differ(kept[1], again[1]) == 0


def test_nothing_is_dropped_in_evaluation():
    batch = random_batch(0, 3, 8, 31)
    plain, model = build(replace(CONFIG, dropout=0.0)), build(CONFIG)
    assert model.loss(batch)[0] != plain.loss(batch)[0]
    assert model.eval().loss(batch)[0] == plain.loss(batch)[0]


def test_a_stage_drops_what_the_whole_model_drops():
    batch = random_batch(0, 3, 8, 31)
    whole = build(CONFIG, 3)
    x = batch.tokens
    for blocks, ends in (([0], {"last": False}), ([1], {"first": False})):
        stage = build(CONFIG, 3, blocks=blocks, **ends)
        x = stage(x, stage.locate(x, numbers=batch.numbers))
    assert torch.equal(x, whole(batch.tokens))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_has_the_same_bits():
    key = counter(7, torch.arange(50)[:, None], torch.arange(60))
    ones = torch.ones(50, 60, 300)
    there = dropout(ones.cuda(), 0.3, key.cuda())
    assert torch.equal(there.cpu(), dropout(ones, 0.3, key))


# normal noise


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
