"""Convert numbers between the format in memory and the format of the computation.

A GPU has instructions for all of it. But the interpreter (of Triton 3.7 and 3.9) truncates when it
converts float32 to bfloat16, and misreads subnormal bfloat16. So bfloat16 goes through integers
here. The kernel that the interpreter's tests prove is then the kernel that a GPU runs.
"""

import triton
import triton.language as tl


@triton.jit
def read(pointers, kind: tl.constexpr, computing: tl.constexpr, mask):
    """Load numbers of one format, and return them in another: float32 or float64."""
    if kind == tl.bfloat16:  # the upper half of a float32
        bits = tl.load(pointers.to(tl.pointer_type(tl.uint16)), mask=mask)
        return (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True).to(computing)
    else:
        return tl.load(pointers, mask=mask).to(computing)


@triton.jit
def write(pointers, x, kind: tl.constexpr, mask):
    """Round x to the nearest number of a format, ties to even, and store it."""
    if kind == tl.bfloat16:
        bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
        last = (bits >> 16) & 1  # the last bit that is kept: an odd one rounds a tie up
        rounded = tl.where(x == x, (bits + 0x7FFF + last) >> 16, 0x7FC0)  # NaN stays NaN
        tl.store(pointers.to(tl.pointer_type(tl.uint16)), rounded.to(tl.uint16), mask=mask)
    else:
        tl.store(pointers, x.to(kind), mask=mask)
