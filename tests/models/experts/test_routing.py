"""The choice of experts, gates, capacity and losses, against loops over tokens."""

import itertools
import math

import pytest
import torch

from helpers.models.experts import routing
from helpers.models.settings import ExpertSettings


def scores(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("experts", "k", "groups", "limit"),
    [(7, 3, 1, None), (6, 1, 3, None), (6, 2, 3, 3), (12, 4, 4, 2), (12, 3, 4, 2), (8, 4, 4, 2)]
    + [(9, 5, 3, 2), (4, 2, 4, 2), (6, 2, 3, 1)],
)
def test_the_best_experts_of_the_best_groups(experts, k, groups, limit):
    found = routing.choose(given := scores(3, 5, experts), k, groups, limit)
    assert found.shape == (3, 5, k)
    size, used = experts // groups, groups if limit is None else limit
    for row, chosen in zip(given.flatten(0, 1).tolist(), found.flatten(0, 1).tolist(), strict=True):
        best = sorted(range(experts), key=lambda i: -row[i])
        if limit is not None and limit < groups:
            most = math.ceil(k / limit)
            sums = [
                sum(sorted(row[g * size : (g + 1) * size], reverse=True)[:most])
                for g in range(groups)
            ]
            allowed = sorted(range(groups), key=lambda g: -sums[g])[:limit]
            best = [i for i in best if i // size in allowed]
        assert chosen == best[:k]
        assert len({i // size for i in chosen}) <= used


def test_the_best_group_is_not_that_of_the_best_expert():
    row = torch.tensor([0.9, 0.1, 0.6, 0.5])
    assert routing.choose(row, 2, 2, 1).tolist() == [2, 3]
    assert routing.choose(row, 2, 2, 2).tolist() == [0, 2]


@pytest.mark.parametrize(("normalized", "scale"), [(True, 1.0), (True, 2.5), (False, 2.5)])
def test_gates_are_shares_of_the_scores(normalized, scale):
    given = scores(2, 3, 6)
    chosen = routing.choose(given.flip(-1), 2)  # not by these scores: a bias may change the choice
    gates = routing.gates_of(given, chosen, normalized, scale)
    for b, t in itertools.product(range(2), range(3)):
        own = given[b, t][chosen[b, t]]
        expected = scale * (own / own.sum() if normalized else own)
        torch.testing.assert_close(gates[b, t], expected, rtol=1e-14, atol=0)
    assert routing.gates_of(torch.zeros(1, 4), torch.tensor([[0, 1]])).tolist() == [[0, 0]]


@pytest.mark.parametrize("capacity", [0.2, 0.7, 1.0, 1.3, 9.0])
def test_capacity_keeps_the_first_tokens_of_each_sequence(capacity):
    chosen = routing.choose(scores(4, 9, 5, seed=1) ** 3, 2)
    most = math.ceil(capacity * 2 * 9 / 5)
    kept = routing.within_capacity(chosen, 5, capacity)
    for b in range(4):
        room = dict.fromkeys(range(5), most)
        for t, j in itertools.product(range(9), range(2)):
            expert = int(chosen[b, t, j])
            assert kept[b, t, j] == (room[expert] > 0)
            room[expert] -= 1
    assert kept.all() == (capacity == 9.0)
    assert kept.any()
    # the future changes nothing: neither do other sequences, nor how they are batched
    for b in range(4):
        assert torch.equal(routing.within_capacity(chosen[b : b + 1], 5, capacity)[0], kept[b])
    changed = chosen.clone()
    changed[:, 6:] = (chosen[:, 6:] + 1) % 5
    assert torch.equal(routing.within_capacity(changed, 5, capacity)[:, :6], kept[:, :6])


def test_balance_loss_is_deepseeks():
    """Equations 17 to 20, written out; times T."""
    given = scores(3, 7, 6, seed=2).requires_grad_()
    chosen, expected = routing.choose(given, 2), 0
    for sequence, choice in zip(given, chosen, strict=True):
        for i in range(6):
            f = 6 / (2 * 7) * sum(i in row for row in choice.tolist())
            P = sum(token[i] / token.sum() for token in sequence) / 7
            expected = expected + 7 * f * P
    found = routing.balance_loss(given, chosen)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    got, wanted = (torch.autograd.grad(loss, given)[0] for loss in (found, expected))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13)


def test_losses_add_up_over_sequences_and_over_parts_of_them():
    given = scores(3, 7, 6, seed=3)
    chosen = routing.choose(given, 2)
    whole = routing.balance_loss(given, chosen)
    each = [routing.balance_loss(given[b : b + 1], chosen[b : b + 1]) for b in range(3)]
    torch.testing.assert_close(sum(each), whole, rtol=1e-14, atol=0)
    counts = routing.counts_of(chosen, 6)
    cut = [
        routing.balance_loss(given[:, part], chosen[:, part], total=lambda own: counts)
        for part in (slice(0, 3), slice(3, 7))
    ]
    torch.testing.assert_close(sum(cut), whole, rtol=1e-14, atol=0)
    even = torch.full((2, 6, 6), 1 / 6, dtype=torch.float64)
    choice = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6], -1).expand(2, 6, 2)
    assert routing.balance_loss(even, choice).item() == pytest.approx(12)  # T of both: the least
    assert routing.balance_loss(given[:0], chosen[:0]) == 0
    assert routing.balance_loss(given[:, :0], chosen[:, :0]) == 0


def test_z_loss():
    logits = torch.tensor([[0.0, 0.0], [1.0, math.log(math.exp(2) - math.e)]])
    assert routing.z_loss(logits).item() == pytest.approx(math.log(2) ** 2 + 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count must be a positive whole number"),
        ({"groups": 3}, "3 groups do not divide 8 experts"),
        ({"groups": 2, "limit": 3}, "a limit of 3 groups, but there are 2"),
        ({"groups": 4, "limit": 1, "chosen": 3}, "a token chooses 3 of 2 experts"),
        ({"chosen": 9}, "a token chooses 9 of 8 experts"),
        ({"chosen": 1}, "the router would get no gradient"),
        ({"score": "tanh"}, "score must be one of softmax, sigmoid, not 'tanh'"),
        ({"product": "bmm"}, "product must be one of loop, grouped, not 'bmm'"),
        ({"capacity": 0.0}, "scale and capacity must be positive"),
        ({"scale": 0}, "scale and capacity must be positive"),
        ({"z_rate": -1}, "z_rate must not be negative, not -1"),
        ({"shared": -1}, "shared must not be negative"),
    ],
)
def test_settings_that_cannot_be_meant(changes, message):
    with pytest.raises(ValueError, match=message):
        ExpertSettings(**{"count": 8} | changes)
