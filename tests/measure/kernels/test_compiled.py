"""Any kernel, compiled for a GPU without one."""

import pytest

pytest.importorskip("triton", reason="Triton is there on Linux only")
import triton
import triton.language as tl

from helpers.measure.kernels.compiled import assembled

OPTIONS = {"num_warps": 4}


@triton.jit
def double(source, target, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + places, 2 * tl.load(source + places))


def test_loads_and_stores_are_counted():
    types = {"source": "*fp32", "target": "*fp32"}
    made = assembled(double, types, {"BLOCK": 512}, 90, OPTIONS, 512)
    assert types == {"source": "*fp32", "target": "*fp32"}
    assert (made.threads, made.block, made.spills(), made.stack) == (128, 512, 0, 0)
    by_number = made.instructions(r"LDG\.E").total()  # pointers of unknown alignment
    assert by_number == 4
    assert made.bytes_per_parameter() == {"loads": 0, "stores": 0}
    assert "sm_90" in made.ptx
    assert 0 < made.registers < 64
