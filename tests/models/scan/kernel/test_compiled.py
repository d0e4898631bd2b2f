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


def test_double_precision_computes_in_it():
    ptx = compile_selective(90, torch.float64).ptx
    assert "fma.rn.f64" in ptx
    assert "fma.rn.f32" not in ptx.replace("fma.rn.f32x2", "")


def test_low_precision_needs_no_more_loads():
    made, wide = compile_selective(90, torch.bfloat16), compile_selective(90)
    assert made.spills() == 0
    loads = [one.instructions(r"LDG\.E[\w.]*").total() for one in (made, wide)]
    assert loads[0] <= loads[1]
