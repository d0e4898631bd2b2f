"""FLOPs agree with the formulas, and count in the right part of the step."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from helpers.measure.flops import Flops, attention_backward_flops, attention_flops, flops_of

B, H, T, D = 2, 3, 16, 8  # batch, heads, tokens, width of a head


def attention_inputs(keys=T, width=D):
    shapes = (B, H, T, D), (B, H, keys, D), (B, H, keys, width)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def test_a_linear_layer(capsys):
    layer = nn.Linear(12, 9)
    x = torch.randn(5, 12, requires_grad=True)
    flops = flops_of(lambda: layer(x).sum().backward())
    product = 2 * 5 * 12 * 9
    assert (flops.forward, flops.backward, flops.recomputed) == (product, 2 * product, 0)
    assert flops.total == flops.model == sum(flops.operators.values()) == 3 * product
    assert capsys.readouterr().out == ""
    assert flops_of(lambda: layer.weight @ x[0]).total == 2 * 12 * 9
    assert flops_of(lambda: x + 1).total == 0


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    q, k, v = attention_inputs()
    flops = flops_of(
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()
    )
    assert any("scaled_dot_product" in name for name in flops.operators)  # the fused kernel ran
    assert flops.forward == 4 * B * H * T * T * D
    assert flops.backward == 10 * B * H * T * T * D


def test_attention_to_other_tokens():
    q, k, v = attention_inputs(keys=7)
    flops = flops_of(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward())
    assert flops.forward == 4 * B * H * T * 7 * D
    assert flops.backward == 10 * B * H * T * 7 * D


def test_fused_attention_counts_as_plain_attention_and_the_scores_again():
    """Compare the formula with the products that the unfused kernel really computes."""
    q, k, v = attention_inputs()

    def attend():
        F.scaled_dot_product_attention(q, k, v).sum().backward()

    fused = flops_of(attend)
    with sdpa_kernel(SDPBackend.MATH):
        plain = flops_of(attend)
    assert not any("scaled_dot_product" in name for name in plain.operators)
    assert fused.forward == plain.forward
    assert fused.backward == plain.backward + 2 * B * H * T * T * D


def test_values_of_another_width():
    shapes = (B, H, T, D), (B, 1, T, D), (B, 1, T, 5)  # one key head for all query heads
    assert attention_backward_flops(*shapes) == 2 * B * H * T * T * (3 * D + 2 * 5)
    assert attention_flops(*shapes) == 2 * B * H * T * T * (D + 5)


def test_a_checkpointed_block_is_recomputed():
    block = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12))
    x = torch.randn(5, 12, requires_grad=True)
    plain = flops_of(lambda: block(x).sum().backward())
    product = 2 * 5 * 12 * 12
    assert plain.forward == 2 * product

    def again():
        checkpoint(block, x, use_reentrant=False).sum().backward()

    flops = flops_of(again)
    assert flops.model == plain.model
    assert flops.recomputed == product  # the backward does not need the last layer's result


class Product(torch.autograd.Function):
    """A product by hand: in its forward, gradients are off."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.mT, x.mT @ gradient


def test_a_checkpointed_function_is_recomputed():
    x, weight = (torch.randn(12, 12, requires_grad=True) for _ in "xw")

    def block(x):
        return Product.apply(x, weight).relu()

    def step(forward):
        return flops_of(lambda: forward(x).sum().backward())

    product = 2 * 12**3
    plain = step(block)
    assert (plain.forward, plain.backward, plain.recomputed) == (product, 2 * product, 0)
    again = step(lambda x: checkpoint(block, x, use_reentrant=False))
    assert (again.forward, again.backward, again.recomputed) == (product, 2 * product, product)


def test_it_draws_itself():
    flops = Flops(forward=1000, recomputed=500, backward=2000, operators={"mm": 3000})
    assert (flops.model, flops.total) == (3000, 3500)
    assert "3,500" in repr(flops)
    assert "3,500" in flops._repr_html_()
    assert len(flops.plot().axes[0].patches) == 1


@pytest.mark.gpu
def test_a_gpu_does_as_many():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    found = []
    for device in ("cpu", "cuda"):
        q = torch.randn(2, 4, 16, 8, device=device, requires_grad=True)
        w = torch.randn(8, 8, device=device, requires_grad=True)

        def step(q=q, w=w):
            out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            (out @ w).sum().backward()

        found.append(flops_of(step).total)
    assert found[0] == found[1]


def test_a_hook_of_one_s_own_is_no_recomputation():
    """Its name alone makes no checkpoint of it."""
    x, eye = torch.randn(4, 4, requires_grad=True), torch.eye(4)

    def unpack_hook(saved):
        return saved @ eye

    def step():
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack_hook):
            y = x.sin()  # saves x
        y.sum().backward()

    found = flops_of(step)
    assert (found.forward, found.recomputed, found.backward) == (0, 0, 2 * 4**3)
