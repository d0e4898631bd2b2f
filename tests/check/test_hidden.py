"""Grading draws other inputs than the student's own check: answers learnt by heart do not pass."""

import importlib
import inspect
import pickle
import random
from itertools import combinations

import cloudpickle
import pytest
import torch

from helpers import check
from helpers.check import elsewhere, hidden
from helpers.check.exercise import Edit
from helpers.check.grading.stand_in import by_value
from helpers.check.ranks import as_numbers
from helpers.check.traffic import UNSENT
from helpers.check.week09 import cache
from helpers.runtime.worker import Worker
from tests.check.test_exercises import solution

SECRET = 20_261


def test_the_usual_inputs_are_the_same_each_time():
    assert hidden.seed(5) == 5
    assert hidden.shift(9) == 0
    assert hidden.more(lambda random: random.random()) == []


def test_a_secret_gives_the_same_inputs_again_and_another_gives_others():
    def drawn(secret):
        with hidden.drawn_from(secret):
            return (
                hidden.seed(5),
                hidden.seed(6),
                hidden.shift(10**9),
                *hidden.more(lambda random: random.random()),
            )

    assert drawn(1) == drawn(1)
    assert len({*drawn(1), *drawn(2)}) == 2 * len(drawn(1))
    assert hidden.seed(5) == 5
    assert len(drawn(1)) == 6


def test_numbers_that_are_drawn_are_spread_over_their_range():
    seeds, shifts = set(), set()
    for secret in range(60):
        with hidden.drawn_from(secret):
            seeds |= {hidden.seed(5), hidden.seed(6)}
            shifts.add(hidden.shift(3))
            assert len(hidden.more(lambda random: random.random(), 5)) == 5
            assert hidden.shift(1) == 1
    assert shifts == {1, 2, 3}
    assert len(seeds) == 120
    assert 2**30 < max(seeds) < 2**31
    assert min(seeds) >= 0


def test_a_secret_ends_with_its_block():
    with hidden.drawn_from(3):
        outer = hidden.seed(5)
        with pytest.raises(ZeroDivisionError), hidden.drawn_from(4):
            1 / (hidden.seed(5) in (5, outer))
        assert hidden.seed(5) == outer
        with hidden.drawn_from(None):
            assert hidden.seed(5) == 5
    assert hidden.seed(5) == 5


def test_a_sandbox_gets_the_numbers_of_its_case_alone():
    def draw():
        return hidden.seed(1), hidden.shift(9**9), hidden.shift(9**9, 1)

    found, drawn = hidden.drawing(draw, 7)
    with hidden.drawn_from(7):
        assert draw() == found
    assert sorted(drawn.values()) == sorted({*found})
    assert hidden.reading(draw, drawn) == found
    with pytest.raises(KeyError):
        hidden.reading(lambda: hidden.seed(2), drawn)
    assert hidden.seed(1) == 1  # and nothing of it stays
    assert hidden.drawing(draw, None) == ((1, 0, 0), {})


class Noting(elsewhere.Here):
    """A place that keeps the orders for its ranks, and runs nothing."""

    beside = False

    def __init__(self):
        self.orders = []

    def launch(self, *given):
        self.orders.append(by_value(lambda: cloudpickle.dumps(given)))
        raise elsewhere.Failed("noted")

    def messages(self, *given):
        self.launch(*given)


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    "name", ["ring_all_reduce", "shard", "column_linear", "reshard_rows", "shard_flat"]
)
def test_neither_the_secret_nor_the_reference_is_sent(name):
    place, secret = Noting(), 987_654_321
    with hidden.drawn_from(secret), elsewhere.at(place):
        assert not getattr(check, name)(len)
    (order,) = place.orders
    assert secret.to_bytes(4, "little") not in order
    assert str(secret).encode() not in order
    right = inspect.unwrap(getattr(check, name)).right.__name__.encode()
    assert bytes([len(right)]) + right not in order
    assert len(order) > 100


def numbers(value):
    """The value, its tensors as lists: pickles of equal tensors may differ."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.tolist()
    return type(value)(map(numbers, value)) if type(value) in (list, tuple) else value


def learnt(fn, answers: dict):
    """A function that knows the answers to what it has seen, and nothing else."""

    def remembering(*arguments):
        return answers[pickle.dumps(numbers(arguments))]

    def learning(*arguments):
        question = pickle.dumps(numbers(arguments))
        answers[question] = fn(*arguments)
        return answers[question]

    return remembering, learning


@pytest.mark.parametrize("name", ["bubble_share", "fuse_messages", "optimal"])
def test_answers_learnt_from_the_own_check_do_not_pass(name):
    remembering, learning = learnt(solution(name), {})
    assert getattr(check, name)(learning)
    assert getattr(check, name)(remembering)  # in the student's kernel nothing has changed
    with hidden.drawn_from(SECRET):
        verdict = getattr(check, name)(remembering)
    assert "KeyError" in verdict.finding


def test_calls_of_other_sizes_are_drawn():
    """The usual calls bring three tokens or more to an empty cache alone."""
    wrong = Edit(cache.CAUSAL, "causal(tokens, keys.shape[2], start * (tokens < 3))")
    assert check.cached_attention(wrong.of(cache.attend))
    with hidden.drawn_from(SECRET):
        assert not check.cached_attention(wrong.of(cache.attend))


def without_messages(worker, tensor):
    """The sum as the own check knows it."""
    ranks = range(worker.world_size)
    tensor.copy_(torch.tensor([sum((i + 1.0) * 100**r for r in ranks) for i in range(len(tensor))]))


@pytest.mark.usefixtures("shared_ranks")
def test_a_sum_that_no_message_brought_does_not_pass():
    verdict = check.ring_all_reduce(without_messages)
    assert (verdict.hint, "bytes too few: 384" in verdict.finding) == (UNSENT, True)
    with hidden.drawn_from(SECRET):
        assert not check.ring_all_reduce(without_messages)


@pytest.mark.parametrize(
    "name", ["tree_broadcast", "ring_all_reduce", "all_to_all", "scan_over_ranks"]
)
def test_no_number_of_a_rank_tells_another(name):
    """Neither another number of its own, nor one of a later case. One case has other sizes."""
    exercise = inspect.unwrap(getattr(check, name))

    def given(cases):
        for ranks, kwargs in (case.arguments for case in cases):
            for rank in range(ranks) if ranks > 1 else ():
                numbers = as_numbers(exercise.given(Worker(rank, ranks, None, None), **kwargs))
                yield torch.zeros(0) if numbers is None else numbers

    with hidden.drawn_from(SECRET):
        cases = exercise.asked()
        drawn = [*given(cases)]
    assert len(cases) == len(exercise.asked()) + 1
    pairs = [pair for pair in zip(drawn, given(cases), strict=True) if len(pair[0]) > 2]
    assert all(len({*(one - usual).tolist()}) > 2 for one, usual in pairs)
    assert len({tuple(one[:2].tolist()) for one, _ in pairs}) == len(pairs) > 3


@pytest.mark.parametrize(
    "name", ["count_attention", "place_on_roofline", "cache_bytes", "outgrowing_batch", "optimal"]
)
def test_each_number_is_drawn_for_itself(name):
    """Where two sizes are always equal, one may stand in the place of the other."""
    draw = inspect.unwrap(getattr(check, name)).draw
    drawn = [draw(random.Random(secret)) for secret in range(20)]
    columns = zip(*(case[1] if isinstance(case[0], str) else case for case in drawn), strict=True)
    assert all(one != other for one, other in combinations(columns, 2))


def test_every_schedule_that_grading_draws_can_be_made():
    module = importlib.import_module("helpers.check.week05.schedules")
    drawn = [module.drawn_programs(random.Random(secret)) for secret in range(200)]
    assert {len(programs) for _, (programs,) in drawn} == {2, 3, 4, 5}
    assert len({words.split(" of ")[0] for words, _ in drawn}) == 3
