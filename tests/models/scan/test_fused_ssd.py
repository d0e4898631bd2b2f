"""The hand-written backward is that of the recurrence, and the forward keeps few tensors."""

import pytest
import torch

from helpers.measure.memory import SavedTensors, storages
from helpers.models.scan import fused_ssd
from tests.models.scan.oracle import assert_same, dual, dual_inputs, with_gradients


def without_skip(x, delta, A, B, C, h0):
    return dual(x, delta, A, B, C, torch.zeros_like(A), h0)


def some(length, **sizes):
    x, delta, A, B, C, _, h0 = dual_inputs(length, **sizes)
    return [x, delta, A, B, C, h0]


@pytest.mark.parametrize("chunk", [1, 3, 4, 20])
@pytest.mark.parametrize("length", [0, 1, 4, 13])
def test_values_and_gradients_are_the_recurrences(length, chunk):
    inputs = some(length)
    ours = with_gradients(lambda *i: fused_ssd.scan(*i, chunk), inputs)
    assert_same(ours, with_gradients(without_skip, inputs))


@pytest.mark.parametrize(
    "sizes",
    [{"groups": 1}, {"groups": 4}, {"heads": 6, "groups": 3}, {"width": 1, "state": 1},
     {"sequences": 1}, {"sequences": 0}],
)  # fmt: skip
def test_groups_and_odd_sizes(sizes):
    inputs = some(9, **sizes)
    ours = with_gradients(lambda *i: fused_ssd.scan(*i, 4), inputs)
    assert_same(ours, with_gradients(without_skip, inputs))


@pytest.mark.parametrize("used", ["y", "last"])
def test_a_result_that_no_one_uses_has_no_gradient(used):
    inputs = some(7)
    which = ("y", "last").index(used)
    found, expected = (
        torch.autograd.grad(scan(*inputs)[which].square().sum(), inputs, allow_unused=True)
        for scan in (lambda *i: fused_ssd.scan(*i, 3), without_skip)
    )
    for ours, theirs in zip(found, expected, strict=True):
        theirs = torch.zeros_like(ours) if theirs is None else theirs  # C does not reach the state
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_the_forward_keeps_inputs_and_states_alone():
    inputs = some(13, groups=1)
    excepted, h0 = storages(inputs), inputs[-1]
    saved = SavedTensors(lambda: excepted)
    with saved:
        y, last = fused_ssd.scan(*inputs, 4)
        y.sum().backward()
    assert saved.peak == 5 * h0.nbytes  # before 4 chunks, and behind the last
    assert last.untyped_storage().nbytes() == h0.nbytes  # a cache that keeps it keeps no others


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_computed_in_float32(dtype):
    exact = [t.detach() for t in some(20)]
    rounded = [t.to(dtype) for t in exact]
    y, last = fused_ssd.scan(*rounded, 8)
    assert (y.dtype, last.dtype) == (dtype, torch.float32)
    expected, after = without_skip(*(t.double() for t in rounded))
    near = 1e-6 if dtype is torch.float32 else 4e-3
    assert (y - expected).norm() < near * expected.norm()
    assert (last - after).norm() < 1e-6 * after.norm()


def test_spans():
    assert fused_ssd.spans_of(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert fused_ssd.spans_of(0, 3) == []
