"""Any kernel, compiled for a GPU without one."""

import pytest

pytest.importorskip("triton", reason="Triton is there on Linux only")
import triton
import triton.language as tl

from helpers.measure.kernels.compiled import Compiled, assembled

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
    assert "sm_80" in assembled(double, types, {"BLOCK": 512}, 80, OPTIONS, 512).ptx
    assert 0 < made.registers < 64


def test_registers_that_spill():
    """64 numbers of each thread live at once, in 32 registers."""
    types = {"source": "*fp32", "target": "*fp32"}
    made = assembled(double, types, {"BLOCK": 2048}, 90, {"num_warps": 1, "maxnreg": 32}, 2048)
    assert made.stack > 0
    assert made.spills() > 0
    assert made.registers <= 32


SASS = """
    LDG.E.128 R4, desc[UR4][R2.64] ;
    LDG.E.128.CONSTANT R8, desc[UR4][R2.64+0x800] ;
    LDG.E R12, desc[UR4][R2.64] ;
    STL [R1], R4 ;
    LDL.LU.64 R6, [R1+0x8] ;
"""
PTX = """
    ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    @%p1 ld.global.L1::evict_first.v2.b32 { %r5, %r6 }, [ %rd2 + 0 ];
    ld.global.b64 { %rd3 }, [ %rd4 + 0 ];
    st.global.v2.b64 [ %rd1 + 0 ], { %rd5, %rd6 };
    st.shared.v4.b32 [ %r7 + 0 ], { %r1, %r2, %r3, %r4 };
"""


def test_instructions_by_their_whole_names():
    made = Compiled(ptx=PTX, sass=SASS, registers=16, stack=8, threads=128, block=1024)
    assert made.instructions(r"LDG\.E") == {"LDG.E": 1}
    assert made.instructions(r"G\.E").total() == 0
    # A thread loads 16 and 8 bytes and stores 16, for each 8 numbers of a program.
    assert made.bytes_per_parameter() == {"loads": 3, "stores": 2}
    assert made.spills() == 2
