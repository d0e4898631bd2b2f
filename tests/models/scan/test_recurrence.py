"""The linear recurrence as a loop, as a tree and in chunks; the operator behind them."""

import math
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.models.scan import blelloch, chunked, recurrence
from helpers.models.scan.blelloch import depth, steps, work
from helpers.models.scan.recurrence import apply, combine
from tests.models.scan.oracle import assert_same, loop, recurrence_inputs, with_gradients

FORMS = {
    "loop": recurrence.scan,
    "tree": blelloch.scan,
    "chunks": chunked.scan,
    **{f"chunks of {n}": partial(chunked.scan, chunk=n) for n in (1, 2, 4, 7)},
}
every_form = pytest.mark.parametrize("scan", FORMS.values(), ids=FORMS)


@every_form
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7, 8, 13, 16, 100])
def test_states_and_gradients_are_those_of_a_plain_loop(scan, length):
    inputs = recurrence_inputs(length)
    assert_same(with_gradients(scan, inputs), with_gradients(loop, inputs))


@every_form
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_any_dims_and_a_shared_decay(scan, shape):
    inputs = recurrence_inputs(7, shape)
    assert_same(with_gradients(scan, inputs), with_gradients(loop, inputs))
    if shape:
        a, (_, b, h0) = torch.rand(2, 7, 2, 1, dtype=torch.float64, requires_grad=True), inputs
        assert_same(with_gradients(scan, [a, b, h0]), with_gradients(loop, [a, b, h0]))

        def wide(a, b, h0):
            return loop(a, b.expand_as(a), h0)

        assert_same(with_gradients(scan, [b, a, h0]), with_gradients(wide, [b, a, h0]))


@every_form
def test_numerical_gradients_of_gradients_and_inputs_that_stay(scan):
    inputs = recurrence_inputs(5, (2,))
    before = [t.detach().clone() for t in inputs]
    assert torch.autograd.gradcheck(scan, inputs)
    assert torch.autograd.gradgradcheck(scan, inputs)
    assert_same(inputs, before)


@every_form
def test_dtypes_and_first_states(scan):
    a, b, h0 = recurrence_inputs(9)
    h, last = scan(a, b, h0)
    first, middle = scan(a[:, :4], b[:, :4], h0)
    second, end = scan(a[:, 4:], b[:, 4:], middle)
    assert_same([torch.cat((first, second), 1), end], [h, last])
    assert_same(scan(a, b), loop(a, b, torch.zeros_like(h0)))
    assert {t.dtype for t in scan(a.float(), b.float(), h0)} == {torch.float64}  # the widest
    low = [t.detach().bfloat16() for t in (a, b)]
    assert {t.dtype for t in scan(*low)} == {torch.bfloat16}
    h, last = scan(torch.ones(0, 4, 3), torch.ones(0, 4, 3))
    assert (h.shape, last.shape) == ((0, 4, 3), (0, 3))


def test_complex_decays():
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1, 5, 2, generator=g, dtype=torch.complex128) for _ in "ab")
    inputs = [a.requires_grad_(), b.requires_grad_(), b[:, 0].detach().clone().requires_grad_()]
    assert_same(recurrence.scan(*inputs), loop(*inputs))
    assert torch.autograd.gradcheck(recurrence.scan, inputs)


def test_what_does_not_fit():
    a = torch.ones(2, 5, 3)
    for given, why in (
        ((a, torch.ones(2)), r"needs the dims"),
        ((a, a[:, :4]), r"a \(2, 5, 3\) and b \(2, 4, 3\) do not broadcast"),
        ((a, a, torch.ones(3)), r"h0 has the shape \(3,\).*\(2, 3\)"),
    ):
        with pytest.raises(ValueError, match=why):
            recurrence.scan(*given)
    with pytest.raises(ValueError, match=r"chunk is 0"):
        chunked.scan(a, a, chunk=0)


def test_the_operator_is_associative():
    g = torch.Generator().manual_seed(0)
    one, two, three = (
        tuple(torch.randn(2, 3, generator=g, dtype=torch.float64) for _ in "ab") for _ in range(3)
    )
    assert_same(combine(combine(one, two), three), combine(one, combine(two, three)))
    assert not torch.allclose(combine(one, two)[1], combine(two, one)[1])
    state = two[0] + 1
    in_turn = two[0] * (one[0] * state + one[1]) + two[1]  # the earlier steps first
    assert_same([apply(combine(one, two), state)], [in_turn])


def test_the_tree_on_eight_inputs():
    ups = [step for step in steps(8) if step.sweep == "up"]
    assert [step.pairs for step in ups] == [
        (((0, 1), (1, 2)), ((2, 3), (3, 4)), ((4, 5), (5, 6)), ((6, 7), (7, 8))),
        (((0, 2), (2, 4)), ((4, 6), (6, 8))),
        (((0, 4), (4, 8)),),
    ]
    assert [(step.sweep, step.level) for step in steps(8)] == [
        ("up", 0), ("up", 1), ("up", 2), ("down", 2), ("down", 1), ("down", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 8, 33])
def test_the_steps_as_data_compute_the_scan(length):
    a, b, h0 = (t.detach() for t in recurrence_inputs(length))
    nodes = {(t, t + 1): (a[:, t], b[:, t]) for t in range(length)}
    before = {(0, length): h0}
    for step in steps(length):
        for left, right in step.pairs:
            both = (left[0], right[1])
            if step.sweep == "up":
                nodes[both] = combine(nodes[left], nodes[right])
            else:
                before[left] = before[both]
                before[right] = apply(nodes[left], before[both])
    found = [*(before[t, t + 1] for t in range(1, length)), apply(nodes[0, length], h0)]
    assert_same([torch.stack(found, 1)], [loop(a, b, h0)[0]])


class Counts(TorchDispatchMode):
    """Counts the numbers that additions with a product make, and the calls."""

    def __init__(self):
        super().__init__()
        self.numbers = self.calls = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # otherwise the first use imports torch._dynamo, which takes a second

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.addcmul:
            self.numbers += made.numel()
            self.calls += 1
        return made


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 100])
def test_work_is_linear_and_depth_logarithmic(length):
    assert work(length) == 2 * (length - 1)
    assert depth(length) == 2 * math.ceil(math.log2(length))
    a, b, h0 = (t.detach()[:1] for t in recurrence_inputs(length, ()))
    with Counts() as counts:
        blelloch.states(a, b, h0)
    last = 1  # the root's steps are applied to h0 as well: the last state
    assert (counts.numbers, counts.calls) == (work(length) + last, depth(length) + last)
