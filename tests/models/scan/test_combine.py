import torch

from helpers.models.scan.combine import apply, combine, identity


def pairs(*shape, count=3):
    g = torch.Generator().manual_seed(0)
    return [
        tuple(torch.randn(shape, generator=g, dtype=torch.float64) for _ in "ab")
        for _ in range(count)
    ]


def close(first, second):
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_combination_does_the_earlier_steps_first():
    first, second, _ = pairs(4)
    state = torch.randn(4, dtype=torch.float64)
    both = apply(combine(first, second), state)
    one_by_one = second[0] * (first[0] * state + first[1]) + second[1]
    torch.testing.assert_close(both, one_by_one, rtol=0, atol=1e-12)


def test_it_is_associative():
    one, two, three = pairs(2, 3)
    close(combine(combine(one, two), three), combine(one, combine(two, three)))


def test_it_is_not_commutative():
    one, two, _ = pairs(4)
    assert not torch.allclose(combine(one, two)[1], combine(two, one)[1])


def test_the_identity_changes_nothing_on_either_side():
    one, *_ = pairs(4)
    close(combine(identity(one), one), one)
    close(combine(one, identity(one)), one)
    close((apply(identity(one), one[1]),), (one[1],))


def test_a_decay_is_shared_where_it_broadcasts():
    one = (torch.tensor([[2.0]]), torch.ones(2, 3))
    two = (torch.tensor([[3.0]]), torch.ones(2, 3))
    decay, state = combine(one, two)
    assert decay.tolist() == [[6.0]]
    assert state.tolist() == [[4.0] * 3] * 2
