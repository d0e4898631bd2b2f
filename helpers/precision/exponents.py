"""Count numbers by their exponent: which part of a tensor fits into a format's range?"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from helpers.precision.formats import Format


@dataclass
class Exponents:
    """How many numbers have each exponent. Add tensors with `add`.

    Attributes:
        counts: exponent -> numbers x with 2^exponent <= |x| < 2^(exponent + 1).
        zeros, infinite, nan: the numbers without an exponent.
    """

    counts: Counter = field(default_factory=Counter)
    zeros: int = 0
    infinite: int = 0
    nan: int = 0

    def add(self, *tensors: torch.Tensor) -> "Exponents":
        """Count the numbers of these tensors, too."""
        for tensor in tensors:
            numbers = tensor.detach().double().flatten()
            self.nan += int(numbers.isnan().sum())
            self.infinite += int(numbers.isinf().sum())
            self.zeros += int((numbers == 0).sum())
            _, exponents = torch.frexp(numbers[numbers.isfinite() & (numbers != 0)])
            found, times = (exponents - 1).unique(return_counts=True)
            self.counts.update(dict(zip(found.tolist(), times.tolist(), strict=True)))
        return self

    @property
    def total(self) -> int:
        """All numbers counted."""
        return sum(self.counts.values()) + self.zeros + self.infinite + self.nan

    def lost_in(self, to: Format) -> int:
        """Count the numbers that are not zero here, but are zero after rounding to the format.

        A number rounds to zero below half of the smallest subnormal number. So a number of the
        exponent just below the smallest subnormal's may become zero (only at exactly half, since
        ties go to the even zero); here it counts as kept.
        """
        below_half = to.smallest_exponent - to.fraction_bits - 1
        return sum(count for exponent, count in self.counts.items() if exponent < below_half)

    def subnormal_in(self, to: Format) -> int:
        """Count the numbers that keep only a part of their bits: they are subnormal there."""
        least = to.smallest_exponent - to.fraction_bits - 1
        inside = range(least, to.smallest_exponent)
        return sum(count for exponent, count in self.counts.items() if exponent in inside)


def exponents(tensors: Iterable[torch.Tensor] | Mapping[str, torch.Tensor]) -> Exponents:
    """Count all numbers of several tensors by their exponent."""
    values = tensors.values() if isinstance(tensors, Mapping) else tensors
    return Exponents().add(*values)
