"""The name of a step of ZeRO stage 1, from the parameters that it leaves behind."""

import pytest
import torch

from helpers.check.week06.stage_1 import AS_TORCH, Twin, kind_of

NUMBERS = 7  # on three ranks: the last one has one number, and two of padding
BEFORE = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.5, 0.25, 2.0], dtype=torch.float64)
EVERY = torch.tensor(
    [
        [3.0, -6.0, 1.5, 0.75, 2.25, -9.0, 4.5, 3.0, 3.0],
        [-1.5, 3.0, 6.0, -7.5, 0.75, 1.5, 10.5, 3.0, 3.0],
        [4.5, 9.0, -3.0, 1.5, -6.0, 3.0, -5.25, 3.0, 3.0],
    ],
    dtype=torch.float64,
)
EVERY[:, :7] /= 2
WHOLE = EVERY.sum(0) / 3
MEAN = WHOLE[:7]
NORM = MEAN.square().sum().sqrt()
SHARDS = [WHOLE[:3].norm(), WHOLE[3:6].norm(), WHOLE[6].abs()]
EARLIER = torch.tensor([0.125, 0.25, -0.5, 0.375, 0.0, -0.125, 0.75], dtype=torch.float64)
OWN = EVERY[2, :7]
MIXED = torch.cat([EVERY[0, :3], EVERY[1, 3:6], EVERY[2, 6:7]])


def after(gradient):
    """A step of size 0.5 after one with the gradient EARLIER, whose momentum is 0.9."""
    return BEFORE - 0.5 * (0.9 * EARLIER + gradient)


def cut(gradient, norm):
    return gradient / max(1.0, float(norm))


def by_shards(norms):
    return torch.cat([MEAN[:3] / norms[0], MEAN[3:6] / norms[1], MEAN[6:] / norms[2]])


def twin():
    made = Twin(BEFORE + 0.5 * EARLIER, "SGD")
    made.step(EARLIER)
    assert torch.allclose(made.params.detach(), BEFORE, rtol=0, atol=1e-15)
    return made


def kind(found, rank=2, every=EVERY):
    return kind_of(found, BEFORE, every, NUMBERS, rank, twin())


RIGHT = after(MEAN / NORM)
KINDS = {
    "right": RIGHT,
    AS_TORCH: after(MEAN / (NORM + 1e-6)),
    "nothing": BEFORE,
    "not gathered": torch.cat([BEFORE[:6], RIGHT[6:]]),
    "the norm of the sum": after(MEAN / (3 * NORM)),
    "divided twice": after(cut(MEAN / 3, NORM / 3)),
    "the sum, clipped as the mean": after(3 * MEAN / NORM),
    "own": after(OWN / OWN.norm()),
    "own, not clipped": after(OWN),
    "own, each its shard": after(MIXED / MIXED.norm()),
    "not clipped": after(MEAN),
    "the sum, not clipped": after(3 * MEAN),
    "clipped by shards": after(by_shards(SHARDS)),
    "clipped by shards, padding too": after(by_shards([*SHARDS[:2], (SHARDS[2] ** 2 + 18).sqrt()])),
    "padding": after(MEAN / (NORM**2 + 18).sqrt()),
    "the sum of norms": after(MEAN / sum(SHARDS)),
    "the square": after(MEAN / NORM**2),
    "each number": after(MEAN.clamp(-1, 1)),
    "a new optimizer": BEFORE - 0.5 * MEAN / NORM,
    "added up": after((MEAN + EARLIER) / (MEAN + EARLIER).norm()),
    "something else": after(MEAN / NORM) + 0.01,
}


def test_the_numbers_tell_the_kinds_apart():
    assert min(*SHARDS) > 1
    assert SHARDS[0] != SHARDS[2]
    assert 2 < NORM < 3
    values = list(KINDS.values())
    for place, one in enumerate(values):
        gaps = [(one - other).abs().max() for other in values[:place]]
        assert min(gaps, default=1) > (1e-8 if place == 1 else 1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_a_step(name):
    made = twin()
    kept = EVERY.clone()
    assert kind_of(KINDS[name], BEFORE, EVERY, NUMBERS, 2, made) == name
    assert torch.equal(EVERY, kept)
    assert torch.equal(made.params.detach(), twin().params.detach())
    (state,) = made.optimizer.state.values()
    assert torch.equal(state["momentum_buffer"], EARLIER)


def test_small_gradients_are_not_clipped():
    """Then a sum is one thing with its clip and another without, and scaling them is a mistake."""
    small = EVERY / 50  # the sum's norm is below 1, too
    mean = MEAN / 50
    assert 3 * mean.norm() < 1
    for name, gradient in (
        ("right", mean),
        ("always scaled", mean / mean.norm()),
        ("divided twice", mean / 3),
        ("the sum", 3 * mean),
        ("own, each its shard, divided", MIXED / 150),
    ):
        assert kind(after(gradient), every=small) == name
    larger = EVERY / 6  # the mean's norm is below 1, the sum's is above
    mean = MEAN / 6
    assert 1 / 3 < mean.norm() < 1
    assert kind(after(mean / (3 * mean.norm())), every=larger) == "the norm of the sum"
    assert kind(after(3 * mean), every=larger) == "the sum, clipped as the mean"


@pytest.mark.parametrize("place", [0, 6])
@pytest.mark.parametrize("by", [1, -1])
def test_rounding_is_right_and_a_mistake_is_not(place, by):
    def off(size):
        found = RIGHT.clone()
        found[place] += by * size
        return found

    assert kind(off(9e-12)) == "right"
    assert kind(off(1.3e-11)) == "something else"
    near = KINDS["not clipped"].clone()
    near[place] += by * 9e-6
    assert kind(near) == "not clipped"
    near[place] += by * 4e-6
    assert kind(near) == "something else"


def test_what_is_almost_right_is_no_known_mistake():
    """With a norm above the number of ranks, a mean that is taken twice changes nothing."""
    large = EVERY * 4
    assert MEAN.norm() * 4 > 3
    assert kind(RIGHT, every=large) == "right"
    assert kind(RIGHT + 1e-7, every=large) == "something else"
    alone = EVERY[:1, :7]
    right = after(alone[0] / alone[0].norm())
    assert kind_of(right + 1e-7, BEFORE, alone, 7, 0, twin()) == "something else"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_number_that_is_not_finite(value):
    found = RIGHT.clone()
    found[-1] = value
    assert kind(found) == "not a number"


def test_a_rank_s_own_shard():
    middle = torch.cat([BEFORE[:3], RIGHT[3:6], BEFORE[6:]])
    assert [kind(middle, rank) for rank in range(3)] == ["something else", "not gathered",
                                                         "something else"]  # fmt: skip
    assert kind(after(EVERY[1, :7] / EVERY[1, :7].norm()), 1) == "own"


def test_a_rank_with_nothing_but_padding():
    """Its shard has the norm 0, and is no reason to divide by it."""
    every = EVERY.clone()
    every[:, 6:] = 3.0
    mean = torch.cat([MEAN[:6], MEAN[:0]])
    made = Twin(BEFORE[:6], "SGD")
    found = BEFORE[:6] - 0.5 * mean / mean.norm()
    assert kind_of(found, BEFORE[:6], every, 6, 2, made) == "right"
    found = BEFORE[:6] - 0.5 * torch.cat([MEAN[:3] / SHARDS[0], MEAN[3:6] / SHARDS[1]])
    assert kind_of(found, BEFORE[:6], every, 6, 2, made) == "clipped by shards"
    assert kind_of(BEFORE[:6], BEFORE[:6], every, 6, 2, made) == "nothing"
