"""Floating-point formats as data: where the bits go, and which numbers they can represent.

A number is ± 2^(exponent - bias) × 1.fraction. If the exponent's bits are all zero, the number is
subnormal: ± 2^(1 - bias) × 0.fraction.
"""

from dataclasses import dataclass

import torch

__all__ = ["BF16", "E4M3", "E5M2", "FORMATS", "FP16", "FP32", "FP64", "TF32", "Format", "format_of"]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A binary floating-point format with one sign bit.

    Attributes:
        name: the usual name.
        exponent_bits, fraction_bits: the widths of the two fields.
        dtype: PyTorch's dtype; None if PyTorch has none.
        infinities: whether an exponent of all ones means infinity or NaN, as in IEEE 754. Without
            infinities, only the code of all ones is NaN, and the other codes of this exponent are
            numbers (Micikevicius et al. 2022, section 3, for E4M3).
        source: the document that defines the format.
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    dtype: torch.dtype | None
    infinities: bool = True
    source: str = "IEEE 754"

    @property
    def bits(self) -> int:
        """The width of the format. TF32 has 19 bits, but memory stores it in 32."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        """The stored exponent of the number 1."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def smallest_exponent(self) -> int:
        """The exponent of the smallest normal number, and of all subnormal numbers."""
        return 1 - self.bias

    @property
    def largest_exponent(self) -> int:
        """The exponent of the largest number."""
        return self.bias if self.infinities else self.bias + 1

    @property
    def exponents(self) -> tuple[int, int, int]:
        """The exponents of the smallest subnormal, the smallest normal and the largest number."""
        least = self.smallest_exponent - self.fraction_bits
        return least, self.smallest_exponent, self.largest_exponent

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.smallest_exponent

    @property
    def smallest_subnormal(self) -> float:
        return 2.0 ** (self.smallest_exponent - self.fraction_bits)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        below_two = 2 - 2.0**-self.fraction_bits  # fraction of all ones
        if not self.infinities:
            below_two -= 2.0**-self.fraction_bits  # the last code is NaN
        return below_two * 2.0**self.largest_exponent

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0**-self.fraction_bits

    def spacing(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the distance between the format's numbers around each x, in float64.

        At a power of two, it is the distance to the next number away from zero.
        """
        _, exponent = torch.frexp(x.double())  # |x| = m 2^exponent with m in [1/2, 1)
        # frexp gives 0 for the exponent of zero
        exponent = torch.where(x == 0, self.smallest_exponent, exponent - 1)
        exponent = exponent.clamp(self.smallest_exponent, self.largest_exponent)
        return torch.ldexp(torch.ones_like(exponent).double(), exponent - self.fraction_bits)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Compute the numbers that these bit patterns represent, in float64.

        Args:
            codes: whole numbers from 0 to 2^bits - 1.

        Raises:
            ValueError: a code does not fit into the format's bits.
        """
        codes = codes.long()
        if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < 2**self.bits:
            raise ValueError(
                f"{self.name} has {self.bits} bits: codes from 0 to {2**self.bits - 1}"
            )
        fraction = codes & (2**self.fraction_bits - 1)
        stored = (codes >> self.fraction_bits) & (2**self.exponent_bits - 1)
        negative = (codes >> (self.bits - 1)) == 1
        normal = stored > 0
        significand = fraction + normal * 2**self.fraction_bits  # a whole number
        exponent = torch.where(normal, stored, 1) - self.bias - self.fraction_bits
        numbers = torch.ldexp(significand.double(), exponent)
        top = stored == 2**self.exponent_bits - 1
        if self.infinities:
            numbers[top & (fraction == 0)] = float("inf")
            numbers[top & (fraction != 0)] = float("nan")
        else:
            numbers[top & (fraction == 2**self.fraction_bits - 1)] = float("nan")
        return torch.where(negative, -numbers, numbers)

    def values(self) -> torch.Tensor:
        """List the format's finite numbers in increasing order, in float64, with one zero.

        Raises:
            ValueError: the format has more than 20 bits, so more than a million numbers.
        """
        if self.bits > 20:
            raise ValueError(f"{self.name} has 2^{self.bits} numbers: too many to list")
        numbers = self.decode(torch.arange(2**self.bits))
        return numbers[numbers.isfinite()].unique()


FP64 = Format(name="fp64", exponent_bits=11, fraction_bits=52, dtype=torch.float64)
FP32 = Format(name="fp32", exponent_bits=8, fraction_bits=23, dtype=torch.float32)
TF32 = Format(name="tf32", exponent_bits=8, fraction_bits=10, dtype=None, source="NVIDIA A100")
BF16 = Format(
    name="bf16", exponent_bits=8, fraction_bits=7, dtype=torch.bfloat16, source="Google Brain"
)
FP16 = Format(name="fp16", exponent_bits=5, fraction_bits=10, dtype=torch.float16)
E4M3 = Format(
    name="fp8 e4m3",
    exponent_bits=4,
    fraction_bits=3,
    dtype=torch.float8_e4m3fn,
    infinities=False,
    source="Micikevicius et al. 2022",
)
E5M2 = Format(
    name="fp8 e5m2",
    exponent_bits=5,
    fraction_bits=2,
    dtype=torch.float8_e5m2,
    source="Micikevicius et al. 2022",
)

FORMATS = (FP64, FP32, TF32, BF16, FP16, E4M3, E5M2)


def format_of(dtype: torch.dtype) -> Format:
    """Look up the format of a PyTorch dtype.

    Raises:
        ValueError: the dtype is none of the formats here.
    """
    for candidate in FORMATS:
        if candidate.dtype is dtype:
            return candidate
    raise ValueError(f"no floating-point format here for {dtype}")
