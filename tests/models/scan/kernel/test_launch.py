"""Launching the kernel: arguments of any layout, defaults, formats, and what it refuses."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")

from helpers.models.scan.kernel.launch import selective_forward
from helpers.models.scan.selective import selective_scan
from tests.models.scan.oracle import assert_same, selective_inputs

SMALL = {"tile": (4, 4)}


def inputs_of(length, **sizes):
    return [t.detach() for t in selective_inputs(length, **sizes)]


@pytest.mark.parametrize("length", [0, 1, 7])
def test_it_is_the_selective_scan(length):
    inputs = inputs_of(length)
    assert_same(selective_forward(*inputs, **SMALL), selective_scan(*inputs, form="loop"))


def test_without_skip_and_first_state():
    inputs = inputs_of(5)[:5]
    assert_same(selective_forward(*inputs, **SMALL), selective_scan(*inputs, form="loop"))


def test_inputs_of_any_layout_stay_as_they_are():
    inputs = [t.mT.contiguous().mT if t.dim() > 1 else t for t in inputs_of(6)]
    before = [t.clone() for t in inputs]
    y, last = selective_forward(*inputs, **SMALL)
    assert_same((y, last), selective_scan(*inputs, form="loop"))
    assert_same(inputs, before)


def test_the_tile_that_a_gpu_gets():
    inputs = inputs_of(2, sequences=1, channels=2, state=1)
    assert_same(selective_forward(*inputs), selective_scan(*inputs, form="loop"))


def test_low_precision_computes_in_float32():
    low = [t.float().bfloat16() for t in inputs_of(5)]
    y, last = selective_forward(*low, **SMALL)
    wanted = selective_scan(*low)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(last, wanted[1])
    torch.testing.assert_close(y.float(), wanted[0].float(), rtol=0.02, atol=0.02)


def test_gradients_are_refused():
    inputs = selective_inputs(3)
    with pytest.raises(RuntimeError, match=r"the kernel has no backward"):
        selective_forward(*inputs)
    with torch.no_grad():
        selective_forward(*inputs, **SMALL)
    for number in range(7):  # each argument alone
        some = [t.detach().requires_grad_(n == number) for n, t in enumerate(inputs)]
        with pytest.raises(RuntimeError, match=r"the kernel has no backward"):
            selective_forward(*some)


def test_a_shape_that_does_not_fit():
    x, delta, A, B, C, *_ = inputs_of(4)
    with pytest.raises(ValueError, match=r"C has the shape"):
        selective_forward(x, delta, A, B, C[:, :3])
