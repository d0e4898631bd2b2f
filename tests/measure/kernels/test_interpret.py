"""A kernel beside its interpreted copy."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")
import triton
import triton.language as tl

from helpers.measure.kernels import interpret
from helpers.measure.kernels.interpret import interpreted

OFFSET = tl.constexpr(3)


@triton.jit
def moved(x, by):
    return x + by


@triton.jit
def shifted(x):
    return moved(x, OFFSET)


@triton.jit
def scaled(x, *, by=2):
    return x * by


@triton.jit
def load(source, target, length, BLOCK: tl.constexpr = 4):  # its name is also that of tl.load
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < length
    tl.store(target + places, shifted(tl.load(source + places, mask=inside)), mask=inside)


@pytest.fixture(autouse=True)
def compiling(monkeypatch):
    """Without TRITON_INTERPRET, as in a notebook."""
    assert not os.environ.get("TRITON_INTERPRET")


def test_it_computes_on_the_cpu_and_calls_other_kernels():
    source, target = torch.arange(6.0), torch.zeros(8)
    interpreted(load)[(2,)](source, target, 6)
    assert target.tolist() == [3, 4, 5, 6, 7, 8, 0, 0]


def test_the_compiled_kernel_stays_and_nothing_leaks():
    before = dict(globals())
    fast = interpreted(load)
    fast[(1,)](torch.zeros(4), torch.zeros(4), 4)
    assert isinstance(load, triton.JITFunction)
    assert isinstance(shifted, triton.JITFunction)
    assert not triton.knobs.runtime.interpret
    assert {name: value for name, value in globals().items() if name != "fast"} == before
    assert interpreted(fast) is fast


def test_a_kernel_of_a_cell_in_a_rank(monkeypatch):
    """Functions that call each other are copied once."""
    copy = interpret.undecorated(load)
    assert copy.__globals__["load"] is copy
    assert copy.__globals__["shifted"] is not shifted
    assert copy.__globals__["tl"] is tl
    assert copy.__defaults__ == (4,)
    assert copy.__annotations__ == load.fn.__annotations__
    assert copy.__name__ == "load"
    assert interpret.undecorated(scaled).__kwdefaults__ == {"by": 2}


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def sums(source, target, BLOCK: tl.constexpr):
    x = tl.load(source + tl.arange(0, BLOCK))
    tl.store(target + tl.arange(0, BLOCK), tl.associative_scan(x, 0, add))
    tl.store(target + BLOCK, tl.reduce(x, 0, add))


def test_operators_of_scans_and_reductions():
    target = torch.zeros(5)
    interpreted(sums)[(1,)](torch.tensor([1.0, 2, 3, 4]), target, 4)
    assert target.tolist() == [1, 3, 6, 10, 10]
