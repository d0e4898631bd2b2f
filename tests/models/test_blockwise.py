"""Blockwise attention against the plain form: results, gradients, odd sizes, and what it keeps."""

from functools import partial

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from helpers.models.attention import Core, last_of
from helpers.models.blockwise import attend, blocks, blockwise, gradients, merge

EXACT = {"rtol": 0, "atol": 1e-13}


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def trained(fn, *inputs, **options):
    """Return the result and the gradients of the inputs, for a loss that weighs each number."""
    inputs = [one.detach().clone().requires_grad_() for one in inputs]
    y = fn(*inputs, **options)
    (y * random(*y.shape, seed=9).to(y.dtype)).sum().backward()
    return [y.detach(), *(one.grad for one in inputs)]


@pytest.mark.parametrize("size", [1, 3, 4, 100])
@pytest.mark.parametrize(("tokens", "keys"), [(1, 1), (1, 7), (4, 4), (3, 8), (9, 9), (8, 9)])
def test_results_and_gradients_equal_the_plain_form(tokens, keys, size):
    q, k, v = random(2, 4, tokens, 6), random(2, 2, keys, 6, seed=1), random(2, 2, keys, 3)
    ours, plain = (trained(fn, q, k, v) for fn in (partial(blockwise, size=size), Core("explicit")))
    torch.testing.assert_close(ours, plain, **EXACT)


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("tokens", [1, 5])  # of the mask: 1 hides keys from all queries
def test_a_mask_of_its_own_for_each_sequence(tokens, size):
    q, k, v = random(3, 2, 5, 4), random(3, 2, 7, 4, seed=1), random(3, 2, 7, 4, seed=2)
    seen = random(3, 1, tokens, 7) > 0
    seen[..., 3] = True
    ours, plain = (
        trained(lambda *of, fn=fn: fn(*of, seen), q, k, v)
        for fn in (partial(blockwise, size=size), Core("explicit"))
    )
    torch.testing.assert_close(ours, plain, **EXACT)


def test_a_query_that_sees_no_key_gives_zero_and_no_gradient():
    q, k, v = random(1, 1, 3, 4), random(1, 1, 5, 4, seed=1), random(1, 1, 5, 4, seed=2)
    seen = torch.ones(3, 5, dtype=torch.bool)
    seen[1] = False
    y, *grads = trained(lambda *of: blockwise(*of, seen, 2), q, k, v)
    assert (y[..., 1, :] == 0).all()
    assert (grads[0][..., 1, :] == 0).all()
    assert all(one.isfinite().all() for one in grads)
    others = [0, 2]
    torch.testing.assert_close(
        trained(lambda q, k, v: blockwise(q, k, v, seen[others], 2), q[..., others, :], k, v)[0],
        y[..., others, :],
        **EXACT,
    )


def test_blocks_merge_in_any_order_and_grouping():
    q, k, v = random(4, 6), random(12, 6, seed=1), random(12, 6, seed=2)
    parts = [attend(q, k[at : at + 4], v[at : at + 4]) for at in (0, 4, 8)]
    whole = attend(q, k, v)
    nothing = attend(q, k, v, torch.zeros(4, 12, dtype=torch.bool))
    a, b, c = parts
    for found in (merge(*merge(*a, *b), *c), merge(*c, *merge(*b, *a)), merge(*merge(*nothing, *c),
                  *merge(*a, *b)), merge(*whole, *nothing)):  # fmt: skip
        torch.testing.assert_close(found, whole, **EXACT)
    assert all(one.isfinite().all() for one in merge(*nothing, *whole))


def test_large_scores_merge_without_overflow():
    """exp(900) is infinite even in float64."""
    q, k, v = 30 * random(3, 4), 30 * random(8, 4, seed=1), random(8, 4, seed=2)
    assert (q @ k.T / 2).max() > 900
    y, _ = merge(*attend(q, k[:4], v[:4]), *attend(q, k[4:], v[4:]))
    torch.testing.assert_close(y, (q @ k.T / 2).softmax(-1) @ v, **EXACT)


def test_blocks_of_a_ring_give_the_gradients():
    """A block's gradients need L and the inner sum over all keys, and nothing of other blocks."""
    q, k, v = random(5, 4), random(9, 4, seed=1), random(9, 4, seed=2)
    seen = last_of(5, 9, q.device)
    y, *wanted = trained(lambda q, k, v: attend(q, k, v, seen)[0], q, k, v)
    grad = random(*y.shape, seed=9)
    total, inner = attend(q, k, v, seen)[1], (grad * y).sum(-1)
    parts = [
        gradients(grad, q, k[at : at + 3], v[at : at + 3], total, inner, seen[:, at : at + 3])
        for at in (6, 0, 3)
    ]
    of_q, of_k, of_v = zip(*parts, strict=True)
    found = [sum(of_q), *(torch.cat([one[1], one[2], one[0]]) for one in (of_k, of_v))]
    torch.testing.assert_close(found, wanted, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_adds_up_in_float32(dtype):
    """Within twice the error of rounding the inputs and the result once."""
    q, k, v = (random(1, 2, 300, 16, seed=seed).to(dtype) for seed in range(3))
    assert {one.dtype for one in attend(q, k, v)} == {torch.float32}
    ours = trained(lambda *of: blockwise(*of, size=32), q, k, v)
    exact = trained(Core("explicit"), *(one.double() for one in (q, k, v)))
    for one, wanted in zip(ours, exact, strict=True):
        assert one.dtype == dtype
        assert (one - wanted).abs().max() < 4 * torch.finfo(dtype).eps * wanted.abs().max()


def test_the_backward_keeps_no_scores():
    """q, k, v and the result, and a number for each query."""
    q, k, v = (random(1, 2, 64, 8, seed=seed).requires_grad_() for seed in range(3))
    kept = []
    with saved_tensors_hooks(lambda one: kept.append(one.numel()) or one, lambda one: one):
        blockwise(q, k, v, size=16)
    assert sum(kept) == 4 * q.numel() + 2 * 64


def test_masks_are_made_where_the_queries_are():
    q = torch.empty(1, 1, 8, 4, device="meta")
    masks = [mask for *_, mask in blocks(q, q, None, 4) if mask is not None]
    assert [mask.device.type for mask in masks] == ["meta", "meta"]
