"""Embedding and cross-entropy by vocabulary beside the whole ones, on three ranks as threads."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.parallel.tensor.regions import Whole
from helpers.parallel.tensor.vocabulary import (
    VocabularyCrossEntropy,
    VocabularyEmbedding,
    check_range,
)
from tests.parallel.threads import Ranks, Transport

V, D = 7, 5
CUTS = {"unequal": (0, 3, 6, 7), "a rank without rows": (0, 4, 4, 7)}
TOKENS = torch.tensor([[0, 2, 3, 6, 3, 5], [6, 4, 1, 0, 5, 2]])  # the first and the last of each


def made(seed, *shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def on_threads(cut, function):
    """Call `function(transport, its slice of the vocabulary)` on each rank."""
    together = Ranks(3)

    def one(rank):
        return function(Transport(together, rank), slice(cut[rank], cut[rank + 1]))

    return together.run(one)


@pytest.mark.parametrize("size", [1.0, 1e4])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_the_loss_and_its_gradient_are_those_of_the_whole_logits(cut, size):
    """exp(1e4) is infinite: the largest logit of all ranks is subtracted first."""
    logits, targets = size * made(2, 2, 6, V), TOKENS.clone()
    targets[0, 1] = targets[1, 5] = -100

    def run(transport, own):
        mine = logits[..., own].clone().requires_grad_()
        total, count = VocabularyCrossEntropy(own.start, V, transport)(mine, targets)
        (3 * total).backward()
        assert torch.equal(mine, logits[..., own])
        return total.detach(), count, mine.grad, transport.log

    whole = logits.clone().requires_grad_()
    wanted = functional.cross_entropy(whole.flatten(0, 1), targets.flatten(), reduction="sum")
    (3 * wanted).backward()
    runs = on_threads(cut, run)
    for total, count, _, log in runs:
        torch.testing.assert_close(total, wanted.detach(), rtol=1e-13, atol=1e-12)
        assert count == 10
        assert log == ["maximum", "all_reduce"]  # the backward sends nothing
    gradients = torch.cat([gradient for *_, gradient, _ in runs], -1)
    torch.testing.assert_close(gradients, whole.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_loss_of_narrow_logits_is_computed_in_float32(dtype):
    logits = 4 * made(3, 2, 6, V, dtype=dtype)

    def run(transport, own):
        mine = logits[..., own].clone().requires_grad_()
        total, _ = VocabularyCrossEntropy(own.start, V, transport)(mine, TOKENS)
        total.backward()
        return total.detach(), mine.grad

    whole = logits.clone().requires_grad_()
    wanted = functional.cross_entropy(
        whole.float().flatten(0, 1), TOKENS.flatten(), reduction="sum"
    )
    wanted.backward()
    runs = on_threads(CUTS["unequal"], run)
    for total, gradient in runs:
        assert total.dtype == torch.float32
        assert gradient.dtype == dtype
        torch.testing.assert_close(total, wanted.detach(), rtol=1e-6, atol=0)
    gradients = torch.cat([gradient for _, gradient in runs], -1)
    torch.testing.assert_close(gradients, whole.grad)


def test_no_tokens_and_no_targets():
    def run(transport, own):
        table = nn.Embedding(V, D)
        table.weight = nn.Parameter(table.weight[own])
        vectors = VocabularyEmbedding(table, own.start, Whole(transport))(TOKENS[:0])
        vectors.sum().backward()
        empty = torch.zeros(0, 6, own.stop - own.start, requires_grad=True)
        criterion = VocabularyCrossEntropy(own.start, V, transport)
        total, count = criterion(empty, TOKENS[:0])
        total.backward()
        assert transport.log == []
        ignored, none = criterion(made(4, 1, 2, V)[..., own], torch.full((1, 2), -100))
        assert table.weight.grad.abs().sum() == 0
        assert empty.grad.shape == empty.shape
        return tuple(vectors.shape), total.item(), int(count), ignored.item(), int(none)

    for cut in CUTS.values():
        assert on_threads(cut, run) == [((0, 6, D), 0.0, 0, 0.0, 0)] * 3


@pytest.mark.parametrize("token", [-1, 7, -100])
def test_a_token_outside_the_vocabulary(token):
    """The range is that of all ranks together, and one wrong token among right ones is enough."""
    odd = torch.tensor([[6, 0], [token, 1]])
    plain = nn.Embedding(V, D)
    plain.weight = nn.Parameter(plain.weight[:3])
    with pytest.raises(RuntimeError, match="a token is outside the vocabulary of 7"):
        VocabularyEmbedding(plain, 4, Whole(None))(odd)
    if token != -100:  # this target counts as ignored
        with pytest.raises(RuntimeError, match="a target is outside the vocabulary of 7"):
            VocabularyCrossEntropy(4, V, None)(torch.zeros(2, 2, 3), odd)
    check_range(torch.tensor([0, 6]), V, "token")
    check_range(torch.zeros(0, dtype=torch.long), V, "token")
