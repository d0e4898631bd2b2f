"""When fragments are averaged, and what that sends."""

import pytest

from helpers.plans.local_steps import Rounds
from helpers.plans.messages import wire


@pytest.mark.parametrize(
    ("every", "fragments", "wanted"),
    [
        (1, 1, [[0], [0], [0]]),
        (3, 1, [[], [], [0], [], [], [0]]),
        (4, 2, [[], [1], [], [0], [], [1], [], [0]]),
        (3, 2, [[1], [], [0], [1], [], [0]]),  # phases 0 and 1.5, rounded down
        (2, 4, [[2, 3], [0, 1], [2, 3]]),
        (1, 2, [[0, 1], [0, 1]]),
    ],
)
def test_each_fragment_has_its_own_phase(every, fragments, wanted):
    rounds = Rounds(every=every, fragments=fragments)
    assert [rounds.due(k) for k in range(1, len(wanted) + 1)] == wanted


@pytest.mark.parametrize("ranks", [2, 3])
def test_bytes_fall_by_h_and_the_peak_by_the_fragments(ranks):
    numbers, every = [100, 60, 40, 56], 8

    def sent(rounds, numbers):
        each = (rounds.messages(numbers, ranks, k) for k in range(1, every + 1))
        return [sum(wire(messages).values()) for messages in each]

    whole = sent(Rounds(every=every), [256])
    streamed = sent(Rounds(every=every, fragments=4), numbers)
    always = sent(Rounds(every=1), [256])
    wanted = 2 * 256 * 4 * (ranks - 1) / ranks
    assert [sum(whole), sum(streamed), sum(always) / every] == pytest.approx([wanted] * 3)
    assert max(streamed) == pytest.approx(max(whole) * 100 / 256)
    (half,) = Rounds(every=1).messages([256], ranks, 1, number_bytes=2, axis="node")
    assert (half.payload, half.axis) == (512, "node")
    (codes,) = Rounds(every=1).messages([256], ranks, 1, form=(4, 64))
    assert codes.sent == (ranks - 1) * (256 / 2 + 4 * 4)


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": 2.0}, {"every": 1, "fragments": 0}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match="must be a whole number, 1 or more"):
        Rounds(**wrong)
