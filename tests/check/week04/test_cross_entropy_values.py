"""The right loss and those of mistakes, number by number, beside loops over one small example."""

from math import exp, log

import pytest
import torch

from helpers.check.week04.cross_entropy_values import Cut, gradients, losses
from helpers.check.week04.kinds import RIGHT

SIZES = (2, 1, 3)
LOGITS = [[0.5, -1.0, 2.0, 0.25, 3.0, -0.5], [1.0, 1.5, -2.0, 0.0, 0.75, 2.5],
          [-0.75, 0.1, 0.2, 1.7, -1.2, 0.6], [2.0, -0.3, 0.9, -1.1, 0.4, 0.8]]  # fmt: skip
TARGETS = [4, 1, -100, 2]  # on ranks 2, 0, none and 1
PLACES = list(zip(LOGITS, TARGETS, strict=True))
COUNTED = [place for place in PLACES if place[1] >= 0]
STARTS = (0, 2, 3)


def cut(rank):
    logits = torch.tensor(LOGITS, dtype=torch.float64).view(2, 2, 6)
    return Cut(logits, torch.tensor(TARGETS).view(2, 2), SIZES, rank)


def part(row, rank):
    return row[STARTS[rank] : STARTS[rank] + SIZES[rank]]


def here(target, rank):
    return 0 <= target - STARTS[rank] < SIZES[rank]


def lse(row):
    return log(sum(map(exp, row)))


def lowest(row):
    """The logarithm of the sum of exponentials, where each rank takes off its own maximum."""
    return log(sum(exp(x - max(part(row, r))) for r in range(3) for x in part(row, r)))


def clamped(row, target, rank):
    return part(row, rank)[min(max(target - STARTS[rank], 0), SIZES[rank] - 1)]


def wrong_losses(rank):
    right = sum(lse(x) - x[t] for x, t in COUNTED)
    owner = [next(r for r in range(3) if here(t, r)) for _, t in COUNTED]
    found = {
        RIGHT: right,
        "the mean": right / 3,
        "the mean over all places": right / 4,
        "N times": 3 * right,
        "divided by N": right / 3,
        "local softmax": sum(lse(part(x, rank)) - x[t] for x, t in COUNTED),
        "local softmax, own targets": sum(
            lse(part(x, rank)) - x[t] for x, t in COUNTED if here(t, rank)
        ),
        "local softmax, summed": sum(
            lse(part(x, r)) - x[t] for (x, t), r in zip(COUNTED, owner, strict=True)
        ),
        "own targets": sum(lse(x) - x[t] for x, t in COUNTED if here(t, rank)),
        "each rank's maximum": sum(
            lowest(x) - (x[t] - max(part(x, r))) for (x, t), r in zip(COUNTED, owner, strict=True)
        ),
        "each rank's maximum, put back": sum(
            lowest(x) + max(part(x, rank)) - x[t] for x, t in COUNTED
        ),
        "local softmax, own maximum": sum(
            lse(part(x, rank)) - max(part(x, rank)) - (x[t] - max(part(x, rank))) * here(t, rank)
            for x, t in COUNTED
        ),
    }
    for suffix, low in (("", lambda row: 0.0), (", lowered", max)):
        found |= {
            f"ignored places counted{suffix}": right + sum(lse(x) - low(x) for x, t in PLACES
                                                           if t < 0),
            f"own target's logit{suffix}": sum(
                lse(x) - low(x) - (x[t] - low(x)) * here(t, rank) for x, t in COUNTED
            ),
            f"every rank's row{suffix}": sum(
                lse(x) - low(x) - sum(clamped(x, t, r) - low(x) for r in range(3))
                for x, t in COUNTED
            ),
            f"rows not shifted{suffix}": sum(
                lse(x) - low(x) - sum(part(x, r)[t] - low(x) for r in range(3) if t < SIZES[r])
                for x, t in COUNTED
            ),
        }  # fmt: skip
    return found


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_loss_by_hand(rank):
    found, wanted = losses(cut(rank)), wrong_losses(rank)
    each = found.pop("not summed")
    assert each.flatten().tolist() == pytest.approx(
        [lse(x) - x[t] if t >= 0 else 0.0 for x, t in PLACES], rel=1e-12
    )
    assert next(iter(found)) == RIGHT  # the first of two equal kinds is named
    assert {kind: value.item() for kind, value in found.items()} == pytest.approx(
        wanted, rel=1e-12, abs=1e-12
    )


def wrong_gradients(rank):
    """kind: (the number at a vocabulary's token k, of a row and its target)."""

    def p(row, k):
        return exp(row[k] - lse(row))

    def local(row, k):
        return exp(row[k] - lse(part(row, rank)))

    def nearest(t):
        return STARTS[rank] + min(max(t - STARTS[rank], 0), SIZES[rank] - 1)

    return {
        RIGHT: lambda x, t, k: (p(x, k) - (k == t)) * (t >= 0),
        "ignored places": lambda x, t, k: p(x, k) - (k == t),
        "local softmax": lambda x, t, k: (local(x, k) - (k == t)) * (t >= 0),
        "local softmax, own targets": lambda x, t, k: (local(x, k) - (k == t)) * here(t, rank),
        "softmax alone": lambda x, t, k: p(x, k) * (t >= 0),
        "softmax alone, ignored places too": lambda x, t, k: p(x, k),
        "own targets": lambda x, t, k: (p(x, k) - (k == t)) * here(t, rank),
        "every rank's row": lambda x, t, k: (p(x, k) - (k == nearest(t))) * (t >= 0),
        "rows not shifted": lambda x, t, k: (p(x, k) - (k - STARTS[rank] == t)) * (t >= 0),
        "the mean": lambda x, t, k: (p(x, k) - (k == t)) * (t >= 0) / 3,
        "the mean over all places": lambda x, t, k: (p(x, k) - (k == t)) * (t >= 0) / 4,
        "the sign": lambda x, t, k: ((k == t) - p(x, k)) * (t >= 0),
        "N times": lambda x, t, k: 3 * (p(x, k) - (k == t)) * (t >= 0),
        "divided by N": lambda x, t, k: (p(x, k) - (k == t)) * (t >= 0) / 3,
        "all logits": lambda x, t, k: (p(x, k) - (k == t)) * (t >= 0),
    }  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_gradient_by_hand(rank):
    found, wanted = gradients(cut(rank)), wrong_gradients(rank)
    assert list(found) == list(wanted)
    own = range(STARTS[rank], STARTS[rank] + SIZES[rank])
    for kind, number in wanted.items():
        tokens = range(6) if kind == "all logits" else own
        rows = [[number(x, t, k) for k in tokens] for x, t in PLACES]
        right = torch.tensor(rows, dtype=torch.float64).view(2, 2, -1)
        assert found[kind].shape == right.shape, kind
        torch.testing.assert_close(found[kind], right, rtol=1e-12, atol=1e-12, msg=kind)


def test_the_parts_and_the_targets_rows():
    example = cut(1)
    assert [p.shape for p in example.parts] == [(2, 2, 2), (2, 2, 1), (2, 2, 3)]
    assert example.counted.tolist() == [[True, True], [False, True]]
    rows, mine = example.rows(2)
    assert rows.tolist() == [[1, 0], [0, 0]]
    assert mine.tolist() == [[True, False], [False, False]]
    rows, mine = example.rows(2, shift=False)
    assert rows.tolist() == [[2, 1], [0, 2]]
    assert mine.tolist() == [[False, True], [False, True]]
    assert example.chosen(2).tolist() == [[3.0, 0.0], [0.0, 0.0]]
    assert example.chosen(2, mask=False).tolist() == [[3.0, 0.0], [1.7, -1.1]]
    lower = example.lower(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double())
    assert lower.logits[..., 0].tolist() == [[-0.5, -1.0], [-3.75, -2.0]]
    assert (lower.rank, lower.sizes) == (1, SIZES)
