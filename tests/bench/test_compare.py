"""The comparisons' arithmetic agrees with cases of known answer."""

import numpy as np
import pytest

from tests.bench.compare import duration, in_turn, median, ratio

DRIFT = np.exp(np.random.default_rng(0).normal(size=40))


@pytest.mark.parametrize(
    ("ours", "peer", "found", "pairs"),
    [
        ([1.0, 2.0, 5.0], [3.0, 6.0, 15.0], 3, 3),
        (0.1 * DRIFT, 0.25 * DRIFT, 2.5, 40),  # a slow round cancels
        ([1.0] * 9, [2.0] * 8 + [100.0], 2, 9),  # one outlier
        ([1.0, None, 2.0, 1.0], [2.0, 5.0, None, 2.0], 2, 2),  # rounds that did not end
    ],
)
def test_ratios_of_known_answer(ours, peer, found, pairs):
    one = ratio(ours, peer)
    assert (one.median, one.low, one.pairs) == (pytest.approx(found), pytest.approx(found), pairs)
    assert ratio(ours, peer) == one  # the same samples give the same interval


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        found = ratio(np.exp(0.2 * rng.normal(size=21)), 2 * np.exp(0.2 * rng.normal(size=21)))
        inside += found.low <= 2 <= found.high
    assert 180 <= inside <= 200  # of 200, at 95 %


def test_samples_that_did_not_end():
    assert ratio([None], [1.0]) is None
    assert median([None, 3.0, 1.0, 2.0]) == 2.0
    assert median([None]) is None


def test_invalid_samples():
    with pytest.raises(ValueError, match="ours has 2 rounds, but the peer has 1"):
        ratio([1.0, 1.0], [1.0])
    with pytest.raises(ValueError, match="positive"):
        ratio([0.0], [1.0])


def test_blocks_go_in_turn_and_each_leads():
    order = []
    contenders = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}
    samples = in_turn(contenders, rounds=3)
    assert "".join(order) == "abcbcacab"
    assert samples == {name: [1.0] * 3 for name in "abc"}


def test_durations_read_well():
    given = (0.0081, 0.0543, 1.309, 12.4, None)
    assert [duration(s) for s in given] == ["8.1 ms", "54 ms", "1.31 s", "12 s", "never"]
