"""Rows sorted by expert, and back: against loops; in any order of arrival; without drops' share."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.models.experts.permutation import combine, sort, spread
from helpers.models.experts.product import grouped, loop


def routed(tokens, experts, k, drops, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(tokens, experts, generator=generator)
    kept = torch.rand(tokens, k, generator=generator) >= drops if drops else None
    x, rows = (
        torch.randn(n, 3, generator=generator, dtype=torch.float64).requires_grad_()
        for n in (tokens, tokens * k)
    )
    gates = torch.rand(tokens, k, generator=generator, dtype=torch.float64).requires_grad_()
    return scores.topk(k).indices, kept, x, rows, gates


@given(
    tokens=st.integers(0, 9),
    experts=st.integers(1, 6),
    share=st.floats(0, 1),
    drops=st.sampled_from([0.0, 0.4, 1.1]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rows_go_to_their_experts_and_back(tokens, experts, share, drops, seed):
    k = max(1, round(share * experts))
    chosen, kept, x, rows, gates = routed(tokens, experts, k, drops, seed)
    order = sort(chosen, experts, kept)
    expected = [
        (expert, n, j)
        for expert in range(experts)
        for n in range(tokens)
        for j in range(k)
        if chosen[n, j] == expert and (kept is None or kept[n, j])
    ]
    assert order.slots.tolist() == [n * k + j for _, n, j in expected]
    assert order.counts.tolist() == [sum(e == i for e, *_ in expected) for i in range(experts)]
    found = spread(x, order)
    assert torch.equal(found, x[[n for _, n, _ in expected]])
    own = rows[: len(expected)]
    y = combine(own, gates, order)
    wanted = 0 * (gates.sum() + torch.zeros(tokens, 3, dtype=torch.float64))
    for row, (_, n, j) in zip(own, expected, strict=True):
        wanted[n] = wanted[n] + row * gates[n, j]
    torch.testing.assert_close(y, wanted, rtol=1e-14, atol=1e-15)
    if tokens:
        weights = torch.randn(y.shape, dtype=torch.float64)
        got = torch.autograd.grad((y * weights).sum(), [rows, gates])
        hoped = torch.autograd.grad((wanted * weights).sum(), [rows, gates], allow_unused=True)
        for one, other in zip(got, hoped, strict=True):
            torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)
        if kept is not None:
            assert not got[1][~kept].any()  # the gate of a drop
        (back,) = torch.autograd.grad((found * found.detach()).sum(), [x])
        uses = torch.tensor([sum(n == m for _, m, _ in expected) for n in range(tokens)])
        torch.testing.assert_close(back, x.detach() * uses[:, None])


def test_gradients_are_derivatives():
    chosen, kept, x, _, gates = routed(5, 4, 2, 0.3)
    order = sort(chosen, 4, kept)
    weight = torch.randn(4, 3, 3, dtype=torch.float64, requires_grad=True)

    def run(x, gates, weight):
        return combine(loop(spread(x, order), order.counts, weight), gates, order)

    assert torch.autograd.gradcheck(run, (x, gates, weight))


def test_sums_are_in_the_order_of_choices():
    """Bit for bit, in an order of experts that is another one."""
    chosen = torch.tensor([[2, 0, 1]])
    gates, order = torch.ones(1, 3), sort(chosen, 3)
    value = {2: 1e8, 0: -1e8, 1: 1.0}  # by the order of experts, 1 would be lost
    rows = torch.tensor([[value[e]] for e in range(3)])
    assert combine(rows, gates, order).item() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_combine_adds_in_the_wider_dtype(dtype):
    chosen, _, _, rows, gates = routed(6, 5, 3, 0.0)
    order = sort(chosen, 5)
    y = combine(rows.to(dtype), gates.float(), order)
    assert y.dtype is dtype
    exact = combine(rows.to(dtype).double(), gates.float().double(), order)
    torch.testing.assert_close(y.double(), exact.to(dtype).double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("counts", [[3, 0, 5, 2], [0, 0, 0, 1], [0, 0, 0, 0]], ids=str)
def test_products_of_experts(counts):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(sum(counts), 8, generator=generator, requires_grad=True)
    weight = torch.randn(4, 12, 8, generator=generator, requires_grad=True)
    of = torch.arange(4).repeat_interleave(torch.tensor(counts))
    expected = torch.einsum("ri,roi->ro", rows, weight[of])
    scale = torch.randn(expected.shape, generator=generator)
    wanted = torch.autograd.grad((expected * scale).sum(), [rows, weight])
    for product in (loop, grouped):
        found = product(rows, torch.tensor(counts), weight)
        torch.testing.assert_close(found, expected)
        for one, other in zip(
            torch.autograd.grad((found * scale).sum(), [rows, weight]), wanted, strict=True
        ):
            torch.testing.assert_close(one, other)
