"""The kernel, compiled for GPUs without one."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")

from helpers.models.scan.kernel.compiled import compile_selective


@pytest.mark.parametrize("capability", [80, 90])  # A100, H100
def test_the_states_stay_in_registers(capability):
    made = compile_selective(capability)
    assert (made.spills(), made.stack) == (0, 0)
    assert made.registers <= 168  # at least three programs of 128 threads on a multiprocessor
    assert f"sm_{capability}" in made.ptx


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_formats_compile(dtype):
    made = compile_selective(90, dtype)
    assert made.spills() == 0
    if dtype is torch.bfloat16:  # half the bytes for the same numbers
        wide = compile_selective(90)
        pattern = r"LDG\.E[\w.]*"
        assert made.instructions(pattern).total() <= wide.instructions(pattern).total()
