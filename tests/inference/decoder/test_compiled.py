"""The compiled step at its edges: strips, numbers of rows, large values, other places and errors.

test_decoder.py compares it with the plain model, as it does for PyTorch's operators.
"""

import shutil

import pytest
import torch

from helpers.inference.decoder import compiled as module
from helpers.inference.decoder.compiled import CompiledStep, in_strips, library
from helpers.inference.decoder.decoder import Decoder
from helpers.models.config import GPTConfig
from helpers.models.gpt import build

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
# widths that are no multiples of a strip, and more than one strip of each matrix
LLAMA = GPTConfig(vocab=77, context=20, width=36, heads=6, kv_heads=3, hidden=41, tied=False)


def model_of():
    return build(LLAMA, 0, torch.float64).eval()


def test_strips_follow_each_other_and_the_last_is_filled_with_zeros():
    matrix = torch.arange(10.0).view(2, 5)
    expected = [[[0, 1], [5, 6]], [[2, 3], [7, 8]], [[4, 0], [9, 0]]]
    assert in_strips(matrix, 2).tolist() == expected
    assert in_strips(matrix, 5).tolist() == matrix[None].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_strip_has_two_vectors_of_the_numbers(dtype):
    assert library(dtype, 6).strip() * dtype.itemsize in (64, 128)
    assert library(dtype, 6) is library(dtype, 6)


@pytest.mark.parametrize("sequences", [1, 2, 3, 4, 7, 8, 13, 16])
@torch.no_grad()
def test_any_number_of_rows(sequences):
    model, generator = model_of(), torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 77, (sequences, 6), generator=generator)
    decoder = Decoder(model, sequences, 8, compiled=True)
    decoder.prefill(tokens[:, :3])
    for place in range(3, 6):
        found = decoder.step(tokens[:, place])
        expected = model(tokens[:, : place + 1])[:, -1]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-3, 30.0, 3e4])
@torch.no_grad()
def test_small_and_large_values_in_both_exponentials(scale):
    """Scores, and the gates of the MLP, over more than the range of a double's exponential."""
    model = model_of()
    for block in model.blocks.values():
        block.attention.query.weight.mul_(scale)
        block.mlp.gate.weight.mul_(scale)
        block.mlp.down.weight.div_(scale)
    tokens = torch.arange(15)[None] * 5
    decoder = Decoder(model, 1, 15, compiled=True)
    for place in range(15):
        found = decoder.step(tokens[:, place])
        expected = model(tokens[:, : place + 1])[:, -1]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@torch.no_grad()
def test_float32_over_its_exponentials_range():
    model = model_of()
    for block in model.blocks.values():
        block.mlp.gate.weight.mul_(2e3)
        block.mlp.down.weight.div_(2e3)
    exact = Decoder(model, 2, 4).step(torch.tensor([5, 76]))
    found = Decoder(model.float(), 2, 4, compiled=True).step(torch.tensor([5, 76]))
    torch.testing.assert_close(found, exact.float(), rtol=0, atol=2e-5)


def test_tokens_outside_the_vocabulary_are_refused():
    decoder = Decoder(model_of(), 2, 4, compiled=True)
    for wrong in ([0, 77], [-1, 3]):
        with pytest.raises(ValueError, match=r"tokens from .* but the vocabulary has 77"):
            decoder.step(torch.tensor(wrong))
    assert decoder.lengths == [0, 0]


@torch.no_grad()
def test_tokens_that_are_a_view_with_gaps():
    model = model_of()
    tokens = torch.tensor([[3, 60], [7, 70], [9, 76]])
    decoder = Decoder(model, 3, 4, compiled=True)
    found = decoder.step(tokens[:, 1])
    torch.testing.assert_close(found, model(tokens[:, 1:])[:, 0], rtol=0, atol=1e-12)


def test_bytes_count_the_second_copy_of_the_weights():
    model = model_of()
    plain, compiled = Decoder(model, 2, 4), Decoder(model, 2, 4, compiled=True)
    step = CompiledStep(plain.weights, 2)
    assert compiled.bytes - plain.bytes == step.bytes
    matrices = plain.weights.bytes - plain.weights.embedding.nbytes
    assert matrices < step.bytes < 2.5 * matrices


def test_without_a_compiler_or_with_one_that_fails(monkeypatch):
    library.cache_clear()
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="no C compiler named cc"):
        Decoder(model_of(), 1, 4, compiled=True)
    monkeypatch.undo()
    monkeypatch.setattr(module, "OPTIONS", ("-shared", "-no-such-option"))
    with pytest.raises(RuntimeError, match=r"could not compile step\.c:\n(.|\n)*no-such-option"):
        Decoder(model_of(), 1, 4, compiled=True)


def test_weights_on_another_device_are_refused():
    weights = Decoder(model_of(), 1, 4).weights
    moved = type(weights)(
        weights.config, weights.embedding.to("meta"), weights.blocks, weights.head, weights.angles
    )
    with pytest.raises(ValueError, match="runs on the CPU, not on meta"):
        CompiledStep(moved, 1)
