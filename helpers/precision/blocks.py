"""Quantise numbers in blocks: int8, or int4 with two numbers in a byte; a block has its own scale.

n  numbers in a row        B  numbers in a block        k  blocks, n / B rounded up

A block has its own step: its largest magnitude / 127 in int8, / 7 in int4. A number becomes the
nearest whole number of steps. So one large number costs precision in its own block only. The range
is symmetric: -128 and -8 are not used, and zero stays zero.

Source: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861,
section 2 (the blocks); Wang et al. 2023, "ZeRO++", arXiv:2306.10209, section 3.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from helpers.precision.block_loops import in_c

CHUNK = 2**18  # numbers at a time: what is computed in between stays in the cache
SMALLEST = 2.0**-126  # of a step: float32's smallest number with all of its digits
SLACK = 2.0**-14  # of half a step: scale, product and result are rounded to float32 (see `bound`)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """A format of quantised rows. A row is bytes: k scales in float32, then the codes.

    In int4, byte j of a block has number j in its low half, and number j + B/2 in its high half.

    A block with a NaN or an infinity has no finite number after decoding. So a loss scale still
    sees an overflow.

    Attributes:
        bits: of a number, 8 or 4.
        size: B, an even number. The last block of a row may be shorter.

    Raises:
        ValueError: other bits; a size that is odd or below 2.
    """

    bits: int = 8
    size: int = 256

    def __post_init__(self):
        if self.bits not in (8, 4):
            raise ValueError(f"bits must be 8 or 4, not {self.bits!r}")
        if self.size < 2 or self.size % 2:
            raise ValueError(f"a block must have an even number of numbers, not {self.size!r}")

    @property
    def largest(self) -> int:
        """The largest code: 127 or 7."""
        return 2 ** (self.bits - 1) - 1

    def nbytes(self, numel: int) -> int:
        """Bytes of a row with `numel` numbers: a multiple of 4, so that scales stay aligned."""
        codes = -(-numel * self.bits // 8)
        return 4 * -(-numel // self.size) + codes + -codes % 4

    @torch.no_grad()
    def encode(self, row: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Quantise a row of floating-point numbers, (n,), to bytes: (nbytes(n),) uint8.

        Args:
            out: where to write; None for new memory.
        """
        if out is None:
            out = torch.empty(self.nbytes(row.numel()), dtype=torch.uint8, device=row.device)
        if in_c(f"encode{self.bits}", row, out, self.size):
            return out
        wide = torch.promote_types(row.dtype, torch.float32)
        memory = torch.empty(0, dtype=wide, device=row.device)  # used by one piece after the other
        for numbers, scales, codes in self.pieces(row, out):
            memory.resize_(max(memory.numel(), numbers.numel()))
            steps = memory[: numbers.numel()].view(numbers.shape)
            steps.copy_(numbers).abs_()
            largest = steps.amax(-1, keepdim=True)
            scales.copy_((largest / self.largest).clamp_(min=SMALLEST))
            torch.mul(numbers, 1 / scales.to(wide), out=steps).round_()
            if self.bits == 8:
                codes.copy_(steps)
                continue
            steps, half = steps.to(torch.int8), codes.shape[-1]
            codes.copy_(steps[:, :half] & 15)
            codes[:, : steps.shape[-1] - half] |= steps[:, half:] << 4
        return out

    @torch.no_grad()
    def decode(self, coded: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write the numbers of a row of `encode` to `out`, (n,), and return it."""
        if in_c(f"decode{self.bits}", out, coded, self.size):
            return out
        for numbers, scales, codes in self.pieces(out, coded):
            if self.bits == 8:
                numbers.copy_(codes)
            else:
                half = codes.shape[-1]
                numbers[:, :half] = codes << 4 >> 4  # the second shift copies the sign
                numbers[:, half:] = (codes >> 4)[:, : numbers.shape[-1] - half]
            numbers.mul_(scales)
        return out

    def pieces(
        self, row: torch.Tensor, coded: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield views of some blocks: numbers (k, B), scales (k, 1), int8 codes (k, B·bits/8)."""
        numel = row.numel()
        scales = coded[: 4 * -(-numel // self.size)].view(torch.float32)
        codes = coded[scales.nbytes :].view(torch.int8)
        last = numel - numel % self.size  # where the shorter block starts
        most = max(CHUNK // self.size, 1) * self.size if row.device.type == "cpu" else numel
        starts = [*range(0, last, most or 1), last]
        for start, stop in zip(starts, [*starts[1:], numel], strict=True):
            if start < stop:
                width = self.size if start < last else stop - start
                blocks = slice(start // self.size, -(-stop // self.size))
                held = slice(start * self.bits // 8, -(-stop * self.bits // 8))
                yield (
                    row[start:stop].view(-1, width),
                    scales[blocks].view(-1, 1),
                    codes[held].view(-1, -(-width * self.bits // 8)),
                )

    def bound(self, row: torch.Tensor) -> torch.Tensor:
        """The largest error of each number after decoding, (n,) float64: half a step of its block.

        Let u = 2^-24. The scale has a relative error of u. So have the inverse and the product: a
        number of steps, at most 127, is off by up to 254 u before it is rounded. The decoded
        number is rounded once more. Together this is half a step, times 1 + 764 u < 1 + 2^-14. A
        narrower format rounds the decoded number to its own digits.
        """
        kind, numel = torch.finfo(row.dtype), row.numel()
        blocks = torch.nn.functional.pad(row.double(), (0, -numel % self.size))
        largest = blocks.view(-1, self.size).abs().amax(-1)
        half = (largest / self.largest).clamp(min=SMALLEST) / 2 * (1 + SLACK)
        rounded = (largest + kind.smallest_normal) * kind.eps / 2
        return (half + rounded).repeat_interleave(self.size)[:numel]
