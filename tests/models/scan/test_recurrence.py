import pytest
import torch

from helpers.models.scan.recurrence import scan
from tests.models.scan.oracle import assert_same, loop, recurrence_inputs, with_gradients


@pytest.mark.parametrize("length", [1, 2, 3, 17])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_states_and_gradients_are_those_of_a_plain_loop(length, shape):
    inputs = recurrence_inputs(length, shape)
    assert_same(with_gradients(scan, inputs), with_gradients(loop, inputs))


def test_no_token_and_no_sequence():
    inputs = recurrence_inputs(0)
    h, last, da, db, dh0 = with_gradients(scan, inputs)
    assert h.shape == da.shape == db.shape == (2, 0, 3)
    assert_same([last, dh0], with_gradients(loop, inputs)[1::3])
    h, last = scan(torch.ones(0, 4, 3), torch.ones(0, 4, 3))
    assert (h.shape, last.shape) == ((0, 4, 3), (0, 3))


def test_without_h0_the_state_begins_at_zero():
    a, b, h0 = recurrence_inputs(5)
    assert_same(scan(a, b), loop(a, b, torch.zeros_like(h0)))


def test_the_last_state_continues_the_sequence():
    a, b, h0 = recurrence_inputs(9)
    h, last = scan(a, b, h0)
    first, middle = scan(a[:, :4], b[:, :4], h0)
    second, end = scan(a[:, 4:], b[:, 4:], middle)
    assert_same([torch.cat((first, second), 1), end], [h, last])


def test_its_gradients_can_be_differentiated_again():
    inputs = recurrence_inputs(4, (2,))
    assert torch.autograd.gradcheck(scan, inputs)
    assert torch.autograd.gradgradcheck(scan, inputs)


def test_complex_decays():
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1, 5, 2, generator=g, dtype=torch.complex128) for _ in "ab")
    inputs = [a.requires_grad_(), b.requires_grad_(), b[:, 0].detach().clone().requires_grad_()]
    assert_same(scan(*inputs), loop(*inputs))
    assert torch.autograd.gradcheck(scan, inputs)


def test_a_and_b_broadcast_and_gradients_are_summed():
    _, b, h0 = recurrence_inputs(6, (4, 3))
    a = torch.rand(2, 6, 4, 1, dtype=torch.float64, requires_grad=True)
    assert_same(with_gradients(scan, [a, b, h0]), with_gradients(loop, [a, b, h0]))
    assert_same(with_gradients(scan, [b, a, h0]), with_gradients(loop_wide, [b, a, h0]))


def loop_wide(a, b, h0):
    return loop(a, b.expand_as(a), h0)


def test_the_widest_dtype_computes():
    a, b, h0 = recurrence_inputs(3)
    h, last = scan(a.float(), b.float(), h0)
    assert h.dtype is last.dtype is torch.float64


def test_inputs_stay_as_they_are():
    inputs = [t.detach() for t in recurrence_inputs(5)]
    before = [t.clone() for t in inputs]
    scan(*inputs)
    assert_same(inputs, before)


def test_shapes_that_do_not_fit():
    a = torch.ones(2, 5, 3)
    with pytest.raises(ValueError, match=r"needs the dims"):
        scan(a, torch.ones(2))
    with pytest.raises(ValueError, match=r"a \(2, 5, 3\) and b \(2, 4, 3\) do not broadcast"):
        scan(a, a[:, :4])
    with pytest.raises(ValueError, match=r"h0 has the shape \(3,\).*\(2, 3\)"):
        scan(a, a, torch.ones(3))
