"""The selective scan in every form, in pieces of any size, and one token at a time."""

import pytest
import torch

from helpers.models.scan import fused
from helpers.models.scan.selective import discretised, selective_scan, selective_step
from tests.models.scan.oracle import assert_same, selective, selective_inputs, with_gradients

NAMES = ("x", "delta", "A", "B", "C", "D", "h0")
every_form = pytest.mark.parametrize("form", ["fused", "loop", "tree", "chunked"])


@every_form
@pytest.mark.parametrize(
    ("length", "sizes"),
    [
        *((length, {}) for length in (0, 1, 2, 70)),
        *((5, sizes) for sizes in ({"sequences": 0}, {"channels": 1, "state": 1}, {"state": 7})),
    ],
)
def test_every_form_is_the_recurrence_token_by_token(form, length, sizes):
    """Results, gradients, and each result's gradients alone."""
    inputs = selective_inputs(length, **sizes)

    def ours(*inputs):
        return selective_scan(*inputs, form=form)

    assert_same(with_gradients(ours, inputs), with_gradients(selective, inputs))
    for result in range(2) if length == 2 else ():
        found, wanted = (
            torch.autograd.grad(f(*inputs)[result].square().sum(), inputs[:4])
            for f in (ours, selective)
        )
        assert_same(found, wanted)


@every_form
def test_numerical_gradients(form):
    inputs = [t.detach().abs() + 0.1 for t in selective_inputs(3, 1, 2, 2)]
    inputs[2] = -inputs[2]  # A
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(lambda *i: selective_scan(*i, form=form), inputs)


@every_form
def test_without_skip_and_first_state_and_with_steps_of_zero(form):
    x, delta, A, B, C, D, h0 = selective_inputs(6)
    ours = selective_scan(x, delta, A, B, C, form=form)
    assert_same(ours, selective(x, delta, A, B, C, 0 * D, 0 * h0))
    _, last = selective_scan(x, delta, A, B, C, D, h0, form=form)
    _, earlier = selective_scan(x[:, :4], delta[:, :4], A, B[:, :4], C[:, :4], D, h0, form=form)
    assert torch.equal(last[0], earlier[0])  # padding: its state stays
    assert not torch.equal(last[1], earlier[1])


@pytest.mark.parametrize("tokens", [1, 3, 4, 100])
@pytest.mark.parametrize("length", [0, 1, 4, 11, 12])
def test_pieces_of_any_size_give_the_recurrence(monkeypatch, length, tokens):
    inputs = selective_inputs(length)
    one = inputs[-1].numel() * inputs[-1].element_size()  # bytes of a state
    monkeypatch.setattr(fused, "BYTES", tokens * one)
    monkeypatch.setattr(fused, "LEAST", 1)
    assert len(fused.Pieces(*inputs[:5]).spans()) == -(-length // tokens)
    assert_same(with_gradients(selective_scan, inputs), with_gradients(selective, inputs))


@pytest.mark.parametrize(
    ("length", "state_bytes", "tokens"),
    [(0, 8, 1), (5, 8, 5), (1000, 2**15, 16), (1000, 2**14, 32), (1000, 2**25, 16), (9, 0, 9)],
)
def test_a_piece_fills_a_buffer_but_is_never_too_short(length, state_bytes, tokens):
    assert fused.piece_length(length, state_bytes) == tokens


def test_inputs_and_first_results_stay_and_any_layout_is_fine():
    inputs = selective_inputs(9)
    before = [t.detach().clone() for t in inputs]
    y, last = selective_scan(*inputs)
    kept = [y.detach().clone(), last.detach().clone()]
    selective_scan(*inputs)
    torch.autograd.grad(y.sum() + last.sum(), inputs)
    assert_same([*inputs, y, last], [*before, *kept])
    turned = [
        (t.detach().mT.contiguous().mT if t.dim() > 1 else t.detach()).requires_grad_()
        for t in inputs
    ]
    assert not turned[0].is_contiguous()
    assert_same(with_gradients(selective_scan, turned), with_gradients(selective, inputs))


def test_low_precision_computes_in_float32():
    x, *others = (t.detach() for t in selective_inputs(40, dtype=torch.float32))
    others[4] = None  # without the skip connection, which is in the inputs' own format
    x = x.bfloat16()
    y, last = selective_scan(x, *others)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    wanted = selective_scan(x.float(), *others)
    assert torch.equal(y, wanted[0].bfloat16())
    assert torch.equal(last, wanted[1])


def test_the_discretisation():
    x, delta = torch.tensor([[[3.0]]]), torch.tensor([[[0.5]]])
    a, b = discretised(x, delta, torch.tensor([[-2.0, -4.0]]), torch.tensor([[[5.0, 7.0]]]))
    torch.testing.assert_close(a[0, 0, 0], torch.tensor([-1.0, -2.0]).exp())
    assert b.tolist() == [[[[7.5, 10.5]]]]


@pytest.mark.parametrize("sizes", [{}, {"channels": 1, "state": 1}, {"sequences": 0}])
def test_steps_are_the_recurrence_and_keep_the_state_before(sizes):
    x, delta, A, B, C, D, h = selective_inputs(6, **sizes)
    expected, last = selective(x, delta, A, B, C, D, h)
    before, found, first = h.clone(), [], h
    for t in range(6):
        y, h = selective_step(x[:, t], delta[:, t], A, B[:, t], C[:, t], D, h)
        found.append(y)
    assert_same([torch.stack(found, 1), h, first], [expected, last, before])


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_fit_is_named(name):
    inputs = dict(zip(NAMES, selective_inputs(4), strict=True))
    with pytest.raises(ValueError, match=r"form is 'fast': choose one of fused, loop"):
        selective_scan(**inputs, form="fast")
    inputs[name] = inputs[name][..., :-1]
    said = "delta" if name == "x" else name  # x says how large the others must be
    with pytest.raises(ValueError, match=f"{said} has the shape" if name != "A" else "B has"):
        selective_scan(**inputs)
    inputs[name] = inputs[name][0]
    with pytest.raises(ValueError, match=r"shape|need \(B, L, D\) and \(D, N\)"):
        selective_scan(**inputs)
