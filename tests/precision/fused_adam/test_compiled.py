"""The kernels, compiled for three generations of GPUs without one: what they load and store."""

import re

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")

from helpers.precision.fused_adam.compiled import compile_advance, compile_update

FP32, BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(("capability", "block"), [(80, 1024), (90, 2048), (100, 1024)])
def test_float32_moves_28_bytes_for_each_parameter(capability, block):  # of A100, H100, B200
    made = compile_update(capability, block=block)
    assert f".target sm_{capability}" in made.ptx
    assert made.bytes_per_parameter() == {"loads": 16, "stores": 12}
    assert (made.spills(), made.stack) == (0, 0)
    loads = block // 128 // 4  # of 4 numbers, by each of 128 threads
    assert made.ptx.count("ld.global.v4") == 4 * loads
    assert made.ptx.count("st.global.v4") == 3 * loads
    by_number = made.instructions(r"STG\.E").total()  # the other path: 4 bytes at a time
    assert 4 * by_number * made.threads / made.block == 12


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(
    ("formats", "moved", "widths"),
    [
        ((), {"loads": 16, "stores": 12}, {"v4.b32"}),
        # 8 bytes of the master copy, 16 of the moments, 2 of the gradient, 2 of the parameter:
        # a thread loads 4 numbers at a time of each format
        ((FP32, BF16, FP32, BF16), {"loads": 14, "stores": 14}, {"v4.b32", "v2.b32"}),
        ((BF16, BF16, BF16), {"loads": 8, "stores": 6}, {"v4.b32"}),
    ],
    ids=["float32", "master copies", "bfloat16"],
)
def test_every_gpu_moves_each_byte_once_from_registers(capability, formats, moved, widths):
    made = compile_update(capability, *formats)
    assert made.bytes_per_parameter() == moved
    assert set(re.findall(r"global\.(v\S+)", made.ptx)) == widths
    # No number goes to local memory, nor to another thread.
    assert (made.spills(), made.stack, made.threads) == (0, 0, 128)
    assert not made.instructions(r"(?:LDS|LDSM|STS|BAR|SHFL)[\w.]*")
    assert made.registers <= 64  # eight programs on a multiprocessor


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_counting_the_steps_compiles(capability):
    made = compile_advance(capability)
    assert (made.spills(), made.stack) == (0, 0)
    assert made.registers <= 32
    # 128 threads and as many tensors: each stores one step and three factors
    assert made.ptx.count("st.global") == 4
    assert made.block == made.threads == 128
