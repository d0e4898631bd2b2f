import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.models.scan.blelloch import depth, scan, states, steps, work
from helpers.models.scan.combine import combine
from tests.models.scan.oracle import assert_same, loop, recurrence_inputs, with_gradients


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 8, 13, 64, 100])
def test_states_and_gradients_are_those_of_a_plain_loop(length):
    inputs = recurrence_inputs(length)
    assert_same(with_gradients(scan, inputs), with_gradients(loop, inputs))


def test_no_token():
    inputs = recurrence_inputs(0)
    assert_same(with_gradients(scan, inputs), with_gradients(loop, inputs))


def test_more_dims_and_a_shared_decay():
    _, b, h0 = recurrence_inputs(7, (4, 2))
    a = torch.rand(2, 7, 4, 1, dtype=torch.float64, requires_grad=True)
    assert_same(with_gradients(scan, [a, b, h0]), with_gradients(loop, [a, b, h0]))


def test_numerical_gradients():
    inputs = recurrence_inputs(5, (2,))
    assert torch.autograd.gradcheck(scan, inputs)
    assert torch.autograd.gradgradcheck(scan, inputs)


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
    assert (work(8), depth(8)) == (14, 6)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 7, 8, 11, 32, 33])
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
                decay, state = nodes[left]
                before[left] = before[both]
                before[right] = decay * before[both] + state
    wanted = loop(a, b, h0)[0]
    for t in range(length - 1):
        found = before[t + 1, t + 2]
        torch.testing.assert_close(found, wanted[:, t], rtol=0, atol=1e-12)
    decay, state = nodes[0, length]
    torch.testing.assert_close(decay * h0 + state, wanted[:, -1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 100, 1000])
def test_work_is_linear_and_depth_logarithmic(length):
    assert work(length) == 2 * (length - 1)
    assert depth(length) == 2 * math.ceil(math.log2(length))


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


@pytest.mark.parametrize("length", [1, 2, 7, 8, 100])
def test_the_scan_does_that_work_in_that_depth(length):
    a, b, h0 = (t.detach()[:1] for t in recurrence_inputs(length, ()))
    with Counts() as counts:
        states(a, b, h0)
    last = 1  # the root's steps are applied to h0 as well: the last state
    assert (counts.numbers, counts.calls) == (work(length) + last, depth(length) + last)


def test_pytorch_s_own_associative_scan_agrees():
    own = pytest.importorskip("torch._higher_order_ops.associative_scan").associative_scan
    a, b, _ = (t.detach() for t in recurrence_inputs(13))
    try:
        _, wanted = own(combine, (a, b), 1, combine_mode="generic")
    except Exception as error:  # a private function may change in any release
        pytest.skip(f"PyTorch's private associative_scan: {type(error).__name__}: {error}")
    assert_same(scan(a, b), (wanted, wanted[:, -1]))
