import pytest
import torch

from helpers.models.scan import fused
from tests.models.scan.oracle import assert_same, selective, selective_inputs, with_gradients


def without_skip(x, delta, A, B, C, h0):
    return selective(x, delta, A, B, C, torch.zeros_like(x[0, 0]) if x.numel() else 0, h0)


def inputs_of(length, **sizes):
    x, delta, A, B, C, _, h0 = selective_inputs(length, **sizes)
    return [x, delta, A, B, C, h0]


@pytest.mark.parametrize("tokens", [1, 3, 4, 100])
@pytest.mark.parametrize("length", [0, 1, 4, 11, 12])
def test_pieces_of_any_size_give_the_recurrence(monkeypatch, length, tokens):
    inputs = inputs_of(length)
    one = inputs[-1].numel() * inputs[-1].element_size()  # bytes of a state
    monkeypatch.setattr(fused, "BYTES", tokens * one)
    monkeypatch.setattr(fused, "LEAST", 1)
    pieces = fused.Pieces(*inputs[:-1]).spans()
    assert len(pieces) == -(-length // tokens)
    assert_same(with_gradients(fused.scan, inputs), with_gradients(without_skip, inputs))


@pytest.mark.parametrize(
    ("length", "state_bytes", "tokens"),
    [
        (0, 8, 1),
        (5, 8, 5),
        (1000, 2**15, 16),
        (1000, 2**14, 32),
        (1000, 2**25, 16),
        (1000, 0, 1000),
    ],
)
def test_a_piece_fills_a_buffer_but_is_never_too_short(length, state_bytes, tokens):
    assert fused.piece_length(length, state_bytes) == tokens


@pytest.mark.parametrize("sizes", [{"sequences": 0}, {"channels": 1, "state": 1}, {"state": 7}])
def test_odd_sizes(sizes):
    inputs = inputs_of(5, **sizes)
    assert_same(with_gradients(fused.scan, inputs), with_gradients(without_skip, inputs))


def test_only_one_result_has_a_gradient():
    inputs = inputs_of(5)
    for result in range(2):
        ours, theirs = (
            torch.autograd.grad(f(*inputs)[result].square().sum(), inputs[:4])
            for f in (fused.scan, without_skip)
        )
        assert_same(ours, theirs)


def test_inputs_and_first_results_stay_as_they_are():
    inputs = inputs_of(9)
    before = [t.detach().clone() for t in inputs]
    y, last = fused.scan(*inputs)
    kept = [y.detach().clone(), last.detach().clone()]
    fused.scan(*inputs)
    torch.autograd.grad(y.sum() + last.sum(), inputs)
    assert_same([*inputs, y, last], [*before, *kept])


def test_inputs_of_any_layout():
    inputs = inputs_of(6)
    turned = [t.detach().mT.contiguous().mT.requires_grad_() for t in inputs]
    assert not turned[0].is_contiguous()
    assert_same(with_gradients(fused.scan, turned), with_gradients(without_skip, inputs))


def test_low_precision_computes_in_float32():
    inputs = [t.detach() for t in inputs_of(40, dtype=torch.float32)]
    low = [t.bfloat16() for t in inputs[:1]] + inputs[1:]
    low[0].requires_grad_()
    y, last = fused.scan(*low)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    wanted = fused.scan(low[0].float(), *low[1:])
    torch.testing.assert_close(y, wanted[0].bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(last, wanted[1], rtol=0, atol=0)
    y.sum().backward()
    assert low[0].grad.dtype is torch.bfloat16
    y, last = fused.scan(*(t.bfloat16() for t in inputs))
    assert last.dtype is torch.float32


def test_only_states_between_pieces_are_kept(monkeypatch):
    inputs = inputs_of(64)
    one = inputs[-1].numel() * 8
    monkeypatch.setattr(fused, "BYTES", 16 * one)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        _, last = fused.scan(*inputs)
    # a cache that keeps the last state keeps no others
    assert last.untyped_storage().nbytes() == inputs[-1].nbytes
    states = [t for t in saved if t.dim() == 4]
    assert [t.shape[0] for t in states] == [4]
    own = {t.untyped_storage().data_ptr() for t in inputs}
    assert {t.untyped_storage().data_ptr() for t in saved} - own == {
        states[0].untyped_storage().data_ptr()
    }
