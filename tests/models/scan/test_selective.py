import pytest
import torch

from helpers.models.scan.selective import FORMS, discretised, selective_scan
from tests.models.scan.oracle import assert_same, selective, selective_inputs, with_gradients

NAMES = ("x", "delta", "A", "B", "C", "D", "h0")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [0, 1, 2, 70])
def test_every_form_is_the_recurrence_token_by_token(form, length):
    inputs = selective_inputs(length)

    def ours(*inputs):
        return selective_scan(*inputs, form=form)

    assert_same(with_gradients(ours, inputs), with_gradients(selective, inputs))


@pytest.mark.parametrize("form", FORMS)
def test_numerical_gradients(form):
    inputs = [t.detach().abs() + 0.1 for t in selective_inputs(3, 1, 2, 2)]
    inputs[2] = -inputs[2]  # A
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(lambda *i: selective_scan(*i, form=form), inputs)


@pytest.mark.parametrize("form", FORMS)
def test_without_skip_and_first_state(form):
    x, delta, A, B, C, D, h0 = selective_inputs(5)
    ours = selective_scan(x, delta, A, B, C, form=form)
    assert_same(ours, selective(x, delta, A, B, C, 0 * D, 0 * h0))


@pytest.mark.parametrize("form", FORMS)
def test_a_step_of_zero_leaves_the_state(form):
    x, delta, A, B, C, D, h0 = selective_inputs(6)
    _, last = selective_scan(x, delta, A, B, C, D, h0, form=form)
    _, earlier = selective_scan(x[:, :4], delta[:, :4], A, B[:, :4], C[:, :4], D, h0, form=form)
    torch.testing.assert_close(last[0], earlier[0], rtol=0, atol=0)
    assert not torch.equal(last[1], earlier[1])


def test_the_discretisation():
    x, delta = torch.tensor([[[3.0]]]), torch.tensor([[[0.5]]])
    a, b = discretised(x, delta, torch.tensor([[-2.0, -4.0]]), torch.tensor([[[5.0, 7.0]]]))
    torch.testing.assert_close(a[0, 0, 0], torch.tensor([-1.0, -2.0]).exp())
    assert b.tolist() == [[[[7.5, 10.5]]]]


def test_an_unknown_form():
    with pytest.raises(ValueError, match=r"form is 'fast': choose one of fused, loop"):
        selective_scan(*selective_inputs(2), form="fast")


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_that_does_not_fit_is_named(name):
    inputs = dict(zip(NAMES, selective_inputs(4), strict=True))
    inputs[name] = inputs[name][..., :-1]
    said = "delta" if name == "x" else name  # x says how large the others must be
    with pytest.raises(ValueError, match=f"{said} has the shape" if name != "A" else "B has"):
        selective_scan(**inputs)
    inputs[name] = inputs[name][0]
    with pytest.raises(ValueError, match=r"shape|need \(B, L, D\) and \(D, N\)"):
        selective_scan(**inputs)
