"""A request checks its numbers, and fills in what it is not given."""

import pytest

from helpers.inference.engine.request import Request
from helpers.inference.sampling import Sampling


def test_defaults():
    request = Request(7, [1, 2], 5)
    assert (request.number, request.prompt, request.new_tokens) == (7, (1, 2), 5)
    assert (request.arrival, request.sampling, request.seed) == (0.0, Sampling(), 7)
    assert request.stop == frozenset()


def test_what_is_given_stays():
    request = Request(7, b"ab", 0, arrival=2.5, seed=0, stop=[3, 3])
    assert (request.prompt, request.seed, request.stop) == ((97, 98), 0, {3})
    assert request.arrival == 2.5


@pytest.mark.parametrize("arrival", [-1.0, float("inf"), float("nan")])
def test_an_impossible_arrival(arrival):
    with pytest.raises(ValueError, match=r"request 7 arrives at .* the run begins at 0"):
        Request(7, [1], 5, arrival=arrival)


def test_a_negative_number_of_tokens():
    with pytest.raises(ValueError, match="request 7 asks for -1 new tokens"):
        Request(7, [1], -1)
