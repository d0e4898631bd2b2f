"""The causal convolution agrees with PyTorch's, forward and backward, in any split."""

import pytest
import torch
from torch.nn import functional

from helpers.models.convolution import Convolution, last_inputs, real_tokens

EXACT = {"rtol": 0, "atol": 1e-12}


def some(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def convolution(channels=3, width=4):
    made = Convolution(channels, width, dtype=torch.float64)
    made.load_state_dict({"weight": some(channels, width, seed=1), "bias": some(channels, seed=2)})
    return made


def pytorchs(made, x):
    weight, width = made.weight, made.weight.shape[1]
    padded = functional.pad(x.mT, (width - 1, 0))
    return functional.conv1d(padded, weight[:, None], made.bias, groups=len(weight)).mT


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize("channels", [1, 3])
def test_values_and_gradients_are_pytorchs(width, tokens, channels):
    made, results = convolution(channels, width), []
    for forward in (lambda x: made(x)[0], lambda x: pytorchs(made, x)):
        made.zero_grad()
        x = some(2, tokens, channels).requires_grad_()
        y = forward(x)
        y.backward(some(2, tokens, channels, seed=3))
        results.append([y, x.grad, made.weight.grad.clone(), made.bias.grad.clone()])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, **EXACT)


def test_gradients_reach_the_inputs_before():
    made = convolution()
    before, x = some(2, 3, 3, seed=4).requires_grad_(), some(2, 5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda before, x: made(x, before), (before, x))


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("sizes", [[7], [1] * 7, [3, 4], [1, 6], [6, 1], [2, 0, 5]])
def test_any_split_gives_the_same(sizes, width):
    made, x = convolution(3, width), some(2, 7, 3)
    whole, kept = made(x)
    before, found = None, []
    for part in x.split(sizes, dim=1):
        y, before = made(part, before)
        found.append(y)
    torch.testing.assert_close(torch.cat(found, 1), whole, **EXACT)
    assert before.shape == (2, width - 1, 3)
    assert torch.equal(before, kept)
    assert torch.equal(kept, functional.pad(x, (0, 0, 3, 0))[:, 10 - (width - 1) :])


def test_decoding_gives_the_same():
    """One token without gradients goes another way."""
    made, x, before = convolution(), some(2, 1, 3), some(2, 3, 3, seed=4)
    expected, kept = made(x, before)
    with torch.no_grad():
        found, same = made(x, before)
    torch.testing.assert_close(found, expected.detach(), **EXACT)
    assert torch.equal(kept, same)


def test_padded_inputs_are_not_kept():
    made, x, before = convolution(), some(4, 5, 3), some(4, 3, 3, seed=4)
    _, kept = made(x, before, [5, 0, 2, 3])
    for sequence, count in enumerate([5, 0, 2, 3]):
        _, alone = made(x[sequence : sequence + 1, :count], before[sequence : sequence + 1])
        assert torch.equal(kept[sequence], alone[0])


def test_the_kept_inputs_have_the_inputs_dtype():
    made = Convolution(3, 4, dtype=torch.float32)
    y, kept = made(torch.ones(1, 2, 3), torch.zeros(1, 3, 3, dtype=torch.bfloat16))
    assert (y.dtype, kept.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_wider_memory_does_not_widen_the_outputs(tokens):
    convolution = Convolution(5, 4, dtype=torch.bfloat16)
    x, before = torch.ones(2, tokens, 5, dtype=torch.bfloat16), torch.ones(2, 3, 5)
    with torch.no_grad():
        y, kept = convolution(x, before)
    assert y.dtype is kept.dtype is torch.bfloat16


def test_by_hand():
    window = torch.arange(8.0).reshape(2, 4, 1)
    assert last_inputs(window, 2, None).flatten(1).tolist() == [[2, 3], [6, 7]]
    assert last_inputs(window, 2, [0, 1]).flatten(1).tolist() == [[0, 1], [5, 6]]
    real = real_tokens([2, 0], 3, torch.device("cpu"))
    assert real.shape == (2, 3, 1)
    assert real.flatten(1).tolist() == [[True, True, False], [False] * 3]
