"""The scan over ranks: what a rank is given, and what the judge refuses, without other ranks."""

from types import SimpleNamespace

import pytest
import torch

from helpers.check.oracle import NotRight
from helpers.check.week10.scan_over_ranks import HINTS, PARTS, Reference, inputs, judge, run
from helpers.runtime.runs import Runs


def test_what_a_rank_is_given_is_its_own_part_alone():
    """Not a view into the other ranks' parts. What it writes into changes no input."""
    worker = SimpleNamespace(rank=2, world_size=3)

    def solve(given, a, b):
        assert given is worker
        assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes() == 4 * 2 * 8
        for mine, right in zip((a, b), inputs([2, 3, 4])[2], strict=True):
            assert torch.equal(mine, right)
        return a.neg_()

    found = run(worker, solve, [2, 3, 4])
    assert torch.equal(found["h"], -inputs([2, 3, 4])[2][0])
    assert (found["calls"], found["unwaited"]) == ([], 0)
    assert run(worker, lambda *_: "h" * 99, [2, 3, 4])["h"] == "'" + "h" * 79


def reported(parts, change):
    """Right states, but for the last rank's."""
    rows = Reference().run(inputs(parts))
    rows[-1] = change(rows[-1])
    return Runs([{"h": h, "calls": []} for h in rows])


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_the_states_of_the_last_rank(parts):
    judge(reported(parts, lambda h: h + 9e-12), parts)
    for change in (
        lambda h: h.float(),
        lambda h: h + 1.3e-11,
        lambda h: torch.cat([h[:-1], h[-1:] * torch.nan]),
    ):
        with pytest.raises(NotRight, match=f"Rank {len(parts) - 1}, token"):
            judge(reported(parts, change), parts)
    for change in (lambda h: h[:-1], lambda h: h[None], lambda h: h[:, :1], lambda h: "h"):
        with pytest.raises(NotRight, match=f"rank {len(parts) - 1} returned") as wrong:
            judge(reported(parts, change), parts)
        assert wrong.value.hint.endswith(f"a tensor ({parts[-1]}, 2) here.")


# Three ranks: decays 2, 3 | 5, 7 | 11, 13, and the inputs 1, 10 | 100, 1000 | 10,000, 100,000.
OWN = [[1, 13], [100, 1700], [10_000, 230_000]]


@pytest.mark.parametrize(
    ("mistake", "handed", "factors"),
    [
        ("", (13, 35 * 13 + 1700), ((5, 35), (11, 143))),
        ("nothing handed on", (13, 35 * 13 + 1700), ((0, 0), (0, 0))),
        ("handed on without decay", (13, 1713), ((5, 35), (11, 143))),
        ("own state only", (13, 1700), ((5, 35), (11, 143))),
        ("the last token's decay only", (13, 7 * 13 + 1700), ((5, 35), (11, 143))),
        ("mended without decay", (13, 35 * 13 + 1700), ((1, 1), (1, 1))),
        ("mended with each token's own decay", (13, 35 * 13 + 1700), ((5, 7), (11, 13))),
        ("mended with the whole decay", (13, 35 * 13 + 1700), ((35, 35), (143, 143))),
        ("mended one token late", (13, 35 * 13 + 1700), ((1, 5), (1, 11))),
        ("first token only", (13, 35 * 13 + 1700), ((5, 0), (11, 0))),
    ],
)
def test_each_mistake_by_hand(mistake, handed, factors):
    """What a rank gets from the rank before is multiplied by a factor for each of its tokens."""
    numbers = ([2, 3], [1, 10]), ([5, 7], [100, 1000]), ([11, 13], [10_000, 100_000])
    given = [
        tuple(torch.tensor([[n, n] for n in row], dtype=torch.float64) for row in pair)
        for pair in numbers
    ]
    found = [h[:, 0].tolist() for h in Reference(mistake).run(given)]
    assert found == [
        OWN[0],
        *(
            [own + factor * state for own, factor in zip(row, pair, strict=True)]
            for row, pair, state in zip(OWN[1:], factors, handed, strict=True)
        ),
    ]
    assert {"", *HINTS} >= {mistake}
    assert len(HINTS) == 9
