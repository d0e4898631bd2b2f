"""Numbers counted by their exponent, beside a count of the rounded numbers themselves."""

import torch

from helpers.precision.exponents import Exponents, exponents
from helpers.precision.formats import BF16, E4M3, E5M2, FP16


def test_counts():
    inf, nan = float("inf"), float("nan")
    found = exponents([torch.tensor([1.0, 1.99, 2.0, -0.5, 0.0, inf, -inf, nan])])
    assert found.counts == {0: 2, 1: 1, -1: 1}
    assert (found.zeros, found.infinite, found.nan, found.total) == (1, 2, 1, 8)
    assert Exponents().add(torch.zeros(2), torch.ones(3)).total == 5
    twice = Exponents().add(torch.ones(2), -torch.ones(3), torch.tensor([0.0, inf, nan]))
    assert twice.add(torch.tensor([1.5, 0.0, inf, nan])) is twice
    assert (twice.counts, twice.zeros, twice.infinite, twice.nan) == ({0: 6}, 2, 2, 2)
    assert twice.total == 12
    tiny = torch.tensor([[2.0**-1000], [2.0**1000]], dtype=torch.float64)
    assert exponents(iter([tiny])).counts == {-1000: 1, 1000: 1}
    assert Exponents().counts == {}  # each has its own
    assert exponents({"a": torch.ones(2), "b": torch.full((1,), 8.0)}).counts == {0: 2, 3: 1}


def test_shares_of_a_format_are_those_of_the_rounded_numbers():
    torch.manual_seed(0)
    x = torch.randn(50_000) * 2.0 ** torch.randint(-40, 20, (50_000,))
    found = exponents([x])
    half = x.half()
    assert found.lost_in(FP16) == int((half == 0).sum())
    subnormal = (half != 0) & (x.abs() < 2.0**-14)
    assert found.subnormal_in(FP16) == int(subnormal.sum())
    assert found.lost_in(BF16) == 0


def test_the_ends_of_a_format_are_the_last_exponents_that_fit():
    for form in (E4M3, E5M2, FP16):
        least, normal, most = form.exponents
        one = {e: exponents([torch.tensor([1.5 * 2.0**e])]) for e in range(least - 2, most + 2)}
        lost, part = (
            [e for e, count in one.items() if getattr(count, kind)(form)]
            for kind in ("lost_in", "subnormal_in")
        )
        assert lost == [least - 2]
        assert part == list(range(least - 1, normal))
