"""The emulation: three products with 8-bit inputs, delayed scales, and which layers have them."""

import math

import pytest
import torch
from torch import nn

from helpers.models.gpt import GPTConfig, build
from helpers.precision.formats import E4M3, E5M2
from helpers.precision.fp8 import DelayedScale, EmulatedLinear, emulate_fp8
from helpers.precision.rounding import nearest


def rounded(x, form, largest):
    """By hand: scale to the format's range by a power of two, round, scale back."""
    scale = 2.0 ** math.floor(math.log2(form.largest / largest.item()))
    return nearest(x * scale, form, saturate=True) / scale


def test_each_product_has_8_bit_inputs():
    torch.manual_seed(0)
    linear = nn.Linear(5, 3)
    emulated = EmulatedLinear.of(linear)
    assert emulated.weight is linear.weight
    assert emulated.bias is linear.bias
    x, gradient = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
    y = emulated(x)
    y.backward(gradient)
    with torch.no_grad():
        emulated(100 * x)
    assert set(emulated.input.amax) == {x.abs().max().item()}  # an evaluation is not noted
    x8 = rounded(x.detach(), E4M3, x.abs().max())
    w8 = rounded(linear.weight.detach(), E4M3, linear.weight.abs().max())
    g8 = rounded(gradient, E5M2, gradient.abs().max())
    torch.testing.assert_close(y, x8 @ w8.T + linear.bias)
    torch.testing.assert_close(x.grad, g8 @ w8)
    torch.testing.assert_close(linear.weight.grad, g8.T @ x8)
    torch.testing.assert_close(linear.bias.grad, gradient.sum(0))  # a sum, not a product
    for wide, low in ((x, x8), (gradient, g8)):
        assert not torch.equal(wide, low)


def test_the_scale_is_a_power_of_two_that_fits_the_largest():
    for largest in (1e-6, 0.9, 1.0, 447.0, 448.0, 449.0, 1e5):
        scale = DelayedScale(E4M3)
        scale.amax.append(largest)
        assert 2 ** int(torch.tensor(scale.scale).log2()) == scale.scale
        assert E4M3.largest / 2 < largest * scale.scale <= E4M3.largest


def test_the_scale_is_that_of_the_last_values():
    scale = DelayedScale(E4M3, history=2)
    assert scale.scale == 1
    assert scale.round(torch.tensor([448.0])).item() == 448  # its own value: there is no history
    assert scale.round(torch.tensor([1000.0])).item() == 448  # larger than the history: saturates
    assert scale.scale == 0.25
    assert scale.round(torch.tensor([1000.0])).item() == 1024  # 250 is between 240 and 256
    for _ in range(2):
        scale.round(torch.tensor([1.0]))
    assert scale.scale == 256  # 1000 is forgotten
    scale.round(torch.tensor([float("nan"), 1.0]))
    scale.round(torch.tensor([float("inf")]))
    scale.round(torch.tensor([1.0]))
    assert scale.scale == 256  # neither NaN nor infinity counts
    scale.round(torch.zeros(0))
    scale.round(torch.zeros(3))
    assert scale.scale == 1  # only zeros: any scale is right
    tiny = torch.tensor([0.0, 2.0**-130])  # float32 has no number as large as their scale
    assert DelayedScale(E4M3).round(tiny).equal(tiny)


@pytest.mark.parametrize("first", [math.inf, -math.inf, math.nan])
def test_a_first_value_that_is_not_finite_counts_neither(first):
    scale = DelayedScale(E4M3)
    made = scale.round(torch.tensor([first, 1.0, -3.0]))
    assert made[1:].tolist() == [1.0, -3.0]
    assert made[0].isnan() if math.isnan(first) else made[0] == math.copysign(448, first)
    assert (scale.scale, list(scale.amax)) == (1.0, [])
    scale.round(torch.tensor([2.0, -7.0]))
    assert set(scale.amax) == {7.0}


def test_the_layers_of_the_blocks():
    model = build(GPTConfig(vocab=17, context=8, width=16, layers=2, heads=2))
    before = dict(model.named_parameters())
    emulate_fp8(model)
    after = dict(model.named_parameters())
    assert list(before) == list(after)
    assert all(after[name] is p for name, p in before.items())
    emulated = [name for name, m in model.named_modules() if isinstance(m, EmulatedLinear)]
    assert len(emulated) == 2 * 7  # of each block: query, key, value, out, gate, up, down
    assert not isinstance(model.head, EmulatedLinear)
    tokens = torch.arange(16).reshape(2, 8)
    loss, _ = model.criterion(model(tokens), tokens)
    loss.backward()
    for name, layer in model.named_modules():
        if isinstance(layer, EmulatedLinear):  # each tensor has a history of its own
            every = (layer.input, layer.weights, layer.gradient)
            assert [scale.form for scale in every] == [E4M3, E4M3, E5M2], name
            assert len({tuple(scale.amax) for scale in every}) == 3
            assert layer.weights.amax[-1] == layer.weight.abs().max().item()
            assert layer.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match=r"no plain nn\.Linear"):
        emulate_fp8(model)  # again


def test_blocks_are_found_inside_of_another_module():
    """As in a pipeline, whose stages are modules of their own."""
    model = nn.ModuleDict({"3": nn.Module(), "head": nn.Linear(2, 2)})
    model["3"].blocks = nn.ModuleList([nn.Linear(2, 2), nn.ModuleDict({"up": nn.Linear(2, 3)})])
    model["3"].other = nn.Linear(2, 2)
    emulate_fp8(model)
    found = [name for name, module in model.named_modules() if type(module) is EmulatedLinear]
    assert found == ["3.blocks.0", "3.blocks.1.up"]


def test_the_result_keeps_the_format_of_its_input_and_a_history_has_16_values():
    scale = DelayedScale(E5M2)
    for k in range(20):
        made = scale.round(torch.full((2,), float(k), dtype=torch.bfloat16))
    assert made.dtype == torch.bfloat16
    assert list(scale.amax) == list(range(4, 20))


def test_a_layer_without_a_bias():
    linear = nn.Linear(4, 2, bias=False)
    x = torch.randn(3, 4)
    x8 = rounded(x, E4M3, x.abs().max())
    w8 = rounded(linear.weight.detach(), E4M3, linear.weight.abs().max())
    torch.testing.assert_close(EmulatedLinear.of(linear)(x), x8 @ w8.T)
