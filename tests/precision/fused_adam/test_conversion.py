"""All numbers of the 16-bit formats, and the numbers between them, against torch's conversion."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")
import triton
import triton.language as tl

from helpers.measure.kernels.interpret import interpreted
from helpers.precision.fused_adam.kernel import read, write


@triton.jit
def convert(source, target, F: tl.constexpr, T: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    write(target + places, read(source + places, F, C, None), T, None)


def converted(x, source, target, computing=tl.float32):
    made = torch.empty(x.shape, dtype=target)
    kinds = [getattr(tl, str(dtype).removeprefix("torch.")) for dtype in (source, target)]
    interpreted(convert)[(1,)](x, made, *kinds, computing, BLOCK=x.numel())
    return made


def bits(x):
    """The bits of each number; all NaNs have the same."""
    kinds = {2: torch.int16, 4: torch.int32}
    return x.view(kinds[x.itemsize]).masked_fill(x.isnan(), 0x7FC0)


def every(dtype):
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)


FORMATS = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@FORMATS
def test_every_number_is_read(dtype):
    widened = converted(every(dtype), dtype, torch.float32)
    assert torch.equal(bits(widened), bits(every(dtype).float()))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # float32's largest, by NumPy
@FORMATS
def test_every_number_and_its_surroundings_are_rounded_to_nearest_even(dtype):
    """The number, just above it, around the tie with the next number, and just below that."""
    exact = every(dtype).float().view(torch.int32).long()
    gap = 2**16 if dtype == torch.bfloat16 else 2**13  # of normal numbers, in float32's last digit
    away = [0, 1, gap // 2 - 1, gap // 2, gap // 2 + 1, gap - 1, 3 * gap // 2, 0]
    around = [(exact + step).clamp(max=2**31 - 1).int() for step in away]
    numbers = torch.cat(around).view(torch.float32)
    rounded = converted(numbers, torch.float32, dtype)
    assert torch.equal(bits(rounded), bits(numbers.to(dtype)))


def test_float64_is_read_and_written_as_it_is():
    numbers = torch.randn(64, dtype=torch.float64)
    assert torch.equal(converted(numbers, torch.float64, torch.float64, tl.float64), numbers)
