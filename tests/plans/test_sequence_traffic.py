"""What a rank sends for a cut sequence, message by message."""

import math

import pytest

from helpers.plans.sequence_traffic import halo_bytes, ring_attention_bytes, scan_bytes


@pytest.mark.parametrize(
    ("ranks", "messages"),
    [(1, [0]), (2, [1, 0]), (3, [2, 1, 0]), (4, [2, 2, 1, 0]), (5, [3, 2, 2, 1, 0])],
)
def test_a_pair_for_each_distance(ranks, messages):
    pair = 2 * (3 + 5) * 8
    found = [
        scan_bytes(decay=3, state=5, ranks=ranks, rank=r, sequences=2, number_bytes=8)
        for r in range(ranks)
    ]
    assert found == [count * pair for count in messages]
    assert max(messages) == math.ceil(math.log2(ranks))
    of_one = [scan_bytes(decay=3, state=5, ranks=ranks, rank=r) for r in range(ranks)]
    assert of_one == [count * (3 + 5) * 4 for count in messages]  # one sequence, 4 bytes


def test_the_halo_goes_to_the_next_rank():
    sizes = {"tokens": 3, "channels": 7, "ranks": 3, "sequences": 2}
    assert [halo_bytes(rank=r, **sizes) for r in range(3)] == [168, 168, 0]
    assert halo_bytes(rank=0, **{**sizes, "ranks": 1}) == 0
    assert halo_bytes(rank=1, tokens=3, channels=7, ranks=3, number_bytes=2) == 42


def test_attention_sends_keys_and_values_around_the_ring():
    found = ring_attention_bytes(length=1200, kept=10, ranks=4, sequences=2, number_bytes=2)
    part = 2 * 300 * 10 * 2
    assert found == {"forward": 3 * part, "backward": 3 * part + 4 * part}
    assert ring_attention_bytes(length=1200, kept=10, ranks=3)["forward"] == 2 * 400 * 10 * 4
    assert ring_attention_bytes(length=1200, kept=10, ranks=1) == {"forward": 0, "backward": 0}


def test_no_such_rank():
    with pytest.raises(ValueError, match="no rank 4 among 4"):
        scan_bytes(decay=1, state=1, ranks=4, rank=4)
    with pytest.raises(ValueError, match="no rank -1"):
        halo_bytes(tokens=1, channels=1, ranks=2, rank=-1)
    with pytest.raises(ValueError, match="no rank 0 among 0"):
        ring_attention_bytes(length=1, kept=1, ranks=0)
