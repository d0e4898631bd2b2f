"""Quantise long rows of float32 in C: the bytes of `blocks`, in one pass over memory.

Operators of PyTorch pass over the numbers five times or more, so they cannot reach half of memcpy's
speed. The loops do: they wait for memory alone.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch

from helpers.measure.kernels.address import address
from helpers.measure.kernels.in_c import loaded

SOURCE = Path(__file__).with_name("blocks.c")
# Bits of floats are read as integers; and rounding needs no trap.
OPTIONS = ("-fno-strict-aliasing", "-fno-trapping-math")
ENOUGH = 2**18  # numbers: the compiler takes as long as operators for some hundreds of such rows


@cache
def loops() -> ctypes.CDLL | None:
    """The loops of blocks.c, compiled for this CPU; None if that fails."""
    try:
        return loaded(SOURCE.read_text(encoding="utf-8"), SOURCE.name, *OPTIONS)
    except RuntimeError:
        return None


def in_c(call: str, row: torch.Tensor, coded: torch.Tensor, size: int) -> bool:
    """Run a loop on a row (n,) and its bytes, if it can be run; else return False.

    Args:
        call: "encode8", "encode4", "decode8" or "decode4".
        size: numbers in a block.
    """
    on_cpu = row.device.type == coded.device.type == "cpu" and type(row) is torch.Tensor
    long_row = row.dtype is torch.float32 and row.numel() >= ENOUGH
    whole = row.is_contiguous() and coded.is_contiguous()
    if not (on_cpu and long_row and whole and loops()):
        return False
    codes = address(coded) + 4 * -(-row.numel() // size)
    pointers = map(ctypes.c_void_p, (address(row), address(coded), codes))
    loops()[call](ctypes.c_long(row.numel()), ctypes.c_long(size), *pointers)
    return True
