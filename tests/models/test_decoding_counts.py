"""Counts of a forward with a cache, beside the operators that ran and the tensors' bytes."""

from dataclasses import replace

import pytest
import torch

from helpers.measure.flops import flops_of
from helpers.models.caches.preallocated import Growing
from helpers.models.config import GPTConfig
from helpers.models.decoding_counts import (
    ForwardCost,
    cache_bytes_per_token,
    decode_cost,
    forward_cost,
    prefill_cost,
)
from helpers.models.gpt import build, kept_by

SHAPES = {
    "llama": {"heads": 4, "tied": False},
    "grouped": {"heads": 4, "kv_heads": 2, "attention": "explicit", "hidden": 5},
    "multi-query": {"heads": 3, "kv_heads": 1, "width": 18, "layers": 3},
    "gpt2": {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True, "vocab": 23},
}
LLAMA_2_7B = GPTConfig.preset("7B")


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def config(request):
    return GPTConfig(**{"vocab": 19, "context": 24, "width": 16, **request.param})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("sequences", "chunks"), [(1, [7, 1, 1]), (3, [1, 5, 1]), (2, [24])])
@torch.no_grad()
def test_counts_are_those_of_the_model(config, dtype, sequences, chunks):
    model = build(config, 0, dtype)
    cache, context = Growing(kept_by(model), sequences, dtype), 0
    size = dtype.itemsize
    for tokens in chunks:
        cost = forward_cost(config, sequences, tokens, context, dtype)
        before, x = cache.bytes, torch.zeros(sequences, tokens, dtype=torch.int64)
        assert cost.flops == flops_of(lambda x=x: model(x, cache=cache)).total
        assert cost.cache_read == cache.bytes
        assert cost.cache_written == cache.bytes - before
        weights = sum(p.nbytes for p in model.parameters())
        if not config.tied:  # else the head reads the whole table
            weights -= model.embedding.weight.nbytes
        if config.positions == "learned":
            weights += (tokens - config.context) * config.width * size
        assert cost.weights == weights + sequences * tokens * config.width * size
        assert cost.bytes == cost.weights + cost.cache_read + cost.cache_written
        assert cost.intensity == cost.flops / cost.bytes
        context += tokens
        assert context * sequences * cache_bytes_per_token(config, dtype) == cache.bytes


def test_prefill_and_decode_are_such_forwards(config):
    half = torch.bfloat16
    assert prefill_cost(config, 3, 7, half) == forward_cost(config, 3, 7, 0, half)
    assert decode_cost(config, 3, 7, half) == forward_cost(config, 3, 1, 7, half)
    assert prefill_cost(config, 3, 7) == forward_cost(config, 3, 7, 0, torch.float32)
    assert decode_cost(config, 3, 7) == forward_cost(config, 3, 1, 7, torch.float32)


def test_the_roofline_gives_the_longer_of_two_times():
    cost = ForwardCost(flops=600, weights=100, cache_read=40, cache_written=10)
    assert cost.seconds(peak=100, bandwidth=50) == 6
    assert cost.seconds(peak=100, bandwidth=15) == 10


def test_a_llama_by_hand():
    """Llama 2 7B in 16 bits: 512 KiB a token; one decoded token has an intensity of about 1."""
    assert cache_bytes_per_token(LLAMA_2_7B, torch.float16) == 2**19
    one = decode_cost(LLAMA_2_7B, 1, 0, torch.float16)
    assert one.weights == 2 * (6_738_415_616 - 32_000 * 4096 + 4096)
    assert 0.99 < one.intensity < 1.01
    assert prefill_cost(LLAMA_2_7B, 1, 4096, torch.float16).intensity > 1000
    # a large batch reads the weights once for all, but each sequence's own cache
    many = decode_cost(LLAMA_2_7B, 64, 4095, torch.float16)
    assert many.cache_read == 64 * 2**31 > many.weights
    assert many.weights - one.weights == 63 * 4096 * 2


@pytest.mark.parametrize("counts", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_counts_that_cannot_be(counts):
    with pytest.raises(ValueError, match="at least one sequence and one new token"):
        forward_cost(LLAMA_2_7B, *counts)


def test_what_is_not_counted():
    forward_cost(LLAMA_2_7B, 1, 1, 4095)
    with pytest.raises(ValueError, match="would have 4097 tokens, but the context allows 4096"):
        forward_cost(LLAMA_2_7B, 1, 1, 4096)
    mixed = replace(LLAMA_2_7B, layers=2, positions="learned", mixer=("attention", "latent"))
    with pytest.raises(ValueError, match="block 1 has the mixer 'latent'; only the products of"):
        forward_cost(mixed, 1, 1, 0)
