"""Pieces of several lengths are read as if each sequence were alone."""

import pytest
import torch

from helpers.inference.reading import check_prompt, device_of, evaluating, one_each, read
from helpers.models.caches.cache import CacheFull
from helpers.models.caches.preallocated import Preallocated
from helpers.models.gpt import kept_by


@pytest.mark.parametrize("pieces", [[[3, 1, 4], [5], []], [[1, 2], [3, 4], [5, 6]]], ids=str)
@torch.no_grad()
def test_logits_are_those_of_each_sequence_alone(model, pieces):
    cache = Preallocated(kept_by(model), 3, 7, torch.float64)
    before = [[7, 7], [8], [9, 0, 9]]
    for some in (before, pieces):
        logits = read(model, cache, some)
    assert logits.shape == (3, max(map(len, pieces)), 19)
    assert not logits.requires_grad
    assert cache.lengths == [len(a) + len(b) for a, b in zip(before, pieces, strict=True)]
    for row, (start, piece) in enumerate(zip(before, pieces, strict=True)):
        alone = model(torch.tensor([start + piece]))[0, len(start) :]
        torch.testing.assert_close(logits[row, : len(piece)], alone, rtol=0, atol=1e-12)


def test_gradients_are_not_recorded_and_a_full_cache_is_as_before(llama):
    cache = Preallocated(kept_by(llama), 1, 3, torch.float64)
    assert not read(llama, cache, [[1, 2]]).requires_grad
    with pytest.raises(CacheFull):
        read(llama, cache, [[1, 2]])
    assert cache.lengths == [2]


def test_dropout_is_off_while_reading(make_model):
    model = make_model(dropout=0.5).train()
    found = [read(model, Preallocated(kept_by(model), 1, 3, torch.float64), [[1, 2, 3]])]
    assert model.training
    model.eval()
    found.append(read(model, Preallocated(kept_by(model), 1, 3, torch.float64), [[1, 2, 3]]))
    assert torch.equal(*found)
    assert not model.training
    model.train()
    with evaluating(model):
        assert not model.training
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert model.training


def test_prompts_that_cannot_be_read(llama):
    assert check_prompt([0], llama.config) == ""
    assert check_prompt([18] * 24, llama.config) == ""
    assert "empty: give one token at least" in check_prompt([], llama.config)
    assert "25 tokens, but the context allows 24" in check_prompt([1] * 25, llama.config)
    assert "token 19 at place 2" in check_prompt([1, 1, 19], llama.config)
    assert "token -1 at place 0" in check_prompt([-1], llama.config)


def test_one_value_for_all_or_one_for_each():
    assert one_each(5, int, 3, "things") == [5, 5, 5]
    assert one_each(range(3), int, 3, "things") == [0, 1, 2]
    assert one_each([], int, 0, "things") == []
    with pytest.raises(ValueError, match="3 prompts, but 2 things: give one for each"):
        one_each([1, 2], int, 3, "things")


def test_the_device_is_the_parameters(llama):
    assert device_of(llama) == torch.device("cpu")
