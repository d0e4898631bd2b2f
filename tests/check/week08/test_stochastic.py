"""Stochastic rounding: the solution passes; each common mistake gets its own hint."""

import pytest
import torch

from helpers import check
from helpers.check.oracle import NotRight
from helpers.check.week08.stochastic import judge, judge_seeds, seeds
from notebooks.solutions import week08
from tests.check.alone import found_alone, names
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


def test_each_case_is_asked_for():
    found = found_alone(check.round_stochastically, week08.round_stochastically, lambda *_: None)
    shares = [
        f"20,000 times a number at {share} of the way from {start} to the next"
        for start in ("1", "-3", "9.53674e-07")
        for share in ("90%", "50%", "25%", "10%")
    ]
    ends = ["the same seed, twice", "another seed"]
    assert names(found) == ["numbers of bf16", "numbers of many sizes", *shares, *ends]


N = 10_000


def rounded_up(count, share, start=1.0, step=2.0**-7):
    """N numbers at this share of the way, so many of them rounded up, the others down."""
    x = torch.full((N,), start + share * step)
    answer = torch.full((N,), start)
    answer[:count] += step
    return answer.bfloat16(), x


def test_five_standard_errors_are_far():
    """The root of 10,000 · 1/4 · 3/4 is 43.3: 216 are within five of it, 217 are not."""
    for count in (2500, 2500 - 216, 2500 + 216):
        judge(*rounded_up(count, 0.25), None)
    for count in (2500 - 217, 2500 + 217):
        with pytest.raises(NotRight) as wrong:
            judge(*rounded_up(count, 0.25), None)
        assert wrong.value.finding == f"{count / N:.1%} were rounded up, and should be 25.0%"


@pytest.mark.parametrize(
    ("count", "share", "hint"),
    [
        (0, 0.25, "rounding to the nearest"),
        (N, 0.75, "rounding to the nearest"),
        (0, 0.75, "rounded toward zero"),
        (N, 0.25, "rounded away from zero"),
        (4900, 0.25, "equally frequent"),
        (5199, 0.25, "equally frequent"),
        (5200, 0.25, "The chance to round up"),
        (7500, 0.25, "farther neighbour"),
        (7300, 0.25, "farther neighbour"),
        (7200, 0.25, "The chance to round up"),
    ],
)
def test_the_hint_for_a_share(count, share, hint):
    with pytest.raises(NotRight) as wrong:
        judge(*rounded_up(count, share), None)
    assert hint in wrong.value.hint


def test_below_zero_the_lower_neighbour_is_the_farther_one():
    """Down is away from zero there."""
    answer, x = rounded_up(N // 4, 0.25, start=-3.0, step=2.0**-6)
    judge(answer, x, None)
    answer, x = rounded_up(0, 0.75, start=-3.0, step=2.0**-6)
    with pytest.raises(NotRight) as wrong:
        judge(answer, x, None)
    assert "away from zero" in wrong.value.hint


def test_a_number_of_bf16_stays_and_others_become_a_neighbour():
    x = torch.tensor([1.0, 1 + 2**-9])
    judge(torch.tensor([1.0, 1.0]).bfloat16(), x, None)
    judge(torch.tensor([1.0, 1 + 2**-7]).bfloat16(), x, None)
    for answer in ([1 + 2**-7, 1.0], [1.0, 1 + 2**-6], [1.0, 1 - 2**-8]):
        with pytest.raises(NotRight, match="its neighbours are"):
            judge(torch.tensor(answer).bfloat16(), x, None)
    with pytest.raises(NotRight) as wrong:
        judge(torch.tensor([1.0, 1.015625]).bfloat16(), x, None)
    assert wrong.value.finding == ("1.00195312 became 1.015625; its neighbours are 1 and 1.0078125")


def test_the_seeds():
    drawn = []

    def solve(x, generator):
        drawn.append(generator.initial_seed())
        return x + len(drawn)

    assert seeds(solve, torch.zeros(2)) == (False, True)
    assert drawn == [5, 5, 6]
    assert seeds(lambda x, generator: x, torch.zeros(2)) == (True, False)
    assert seeds(lambda x, generator: x.add_(1), torch.zeros(2)) == (True, False)  # into a copy
    judge_seeds((True, True), None, None)
    for answer, words in (
        ((False, True), "equal seeds gave different results"),
        ((True, False), "two seeds gave equal results"),
    ):
        with pytest.raises(NotRight, match=words):
            judge_seeds(answer, None, None)


def test_the_kind_of_answer():
    x = torch.ones(2, 3)
    for answer, finding in (
        (x, "returned a tensor of torch.float32"),
        (x.half(), "returned a tensor of torch.float16"),
        (7, "returned 7"),
        (x.bfloat16().T, "returned the shape (3, 2)"),
    ):
        with pytest.raises(NotRight) as wrong:
            judge(answer, x, None)
        assert wrong.value.finding == finding
