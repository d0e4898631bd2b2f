"""Times between tokens, by hand."""

import math

import pytest

from helpers.inference.ranks.streams import Stream, Streams


def some():
    return Streams(
        {
            3: Stream(1.0, [5, 6, 7, 8], [1.5, 1.7, 4.0, 4.1]),
            1: Stream(0.0, [2, 2], [0.5, 1.0]),
            2: Stream(2.0, [9], [2.25]),
        },
        [0, 4],
        {1: 10},
    )


def test_first_token_and_gaps():
    stream = some().streams[3]
    assert stream.first == 0.5
    assert stream.gaps == pytest.approx([0.2, 2.3, 0.1])
    assert stream.stutter == pytest.approx(2.3)
    assert some().streams[2].stutter == 0


def test_a_row_for_each_request():
    frame = some().frame()
    assert list(frame.index) == [3, 1, 2]
    assert frame.loc[3, "longest gap"] == pytest.approx(2.3)
    assert frame.loc[3, "median gap"] == pytest.approx(0.2)
    assert frame.loc[3, "first token"] == 0.5
    assert list(frame["arrival"]) == [1.0, 0.0, 2.0]
    assert list(frame["tokens"]) == [4, 2, 1]
    assert list(frame.columns[2:]) == ["first token", "median gap", "longest gap"]
    assert frame.loc[2, "tokens"] == 1
    assert math.isnan(frame.loc[2, "median gap"])
    assert Streams({}).frame().empty


def test_quantiles_are_over_all_gaps():
    assert some().gap(1) == pytest.approx(2.3)
    assert some().gap(0) == pytest.approx(0.1)
    assert some().gap(0.5) == pytest.approx(0.35)


def test_ranks_are_joined_in_the_requests_order():
    other = Streams({0: Stream(0.0)}, [7], {0: 20})
    first = some()
    every = Streams.of_all([first, other])
    assert list(every.streams) == [0, 1, 2, 3]
    assert every.interrupted == [0, 4, 7]
    assert every.handed == {1: 10, 0: 20}
    assert list(other.streams) == [0]  # what is joined does not change
    assert first == some()
