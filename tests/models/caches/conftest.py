"""Small models of several shapes, for the caches."""

import pytest
import torch

from helpers.models.gpt import GPTConfig, build

SHAPES = {
    "llama": {"heads": 4},
    "grouped": {"heads": 4, "kv_heads": 2, "attention": "explicit"},
    "multi-query": {"heads": 4, "kv_heads": 1},
    "latent": {"heads": 2, "mixer": "latent"},
    "gpt2": {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True},
}


EXACT = {"rtol": 0, "atol": 1e-12}


def some_tokens(sequences, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 19, (sequences, tokens), generator=generator)


def varied(shape):
    """A model of this shape, with all parameters random."""
    config = GPTConfig(vocab=19, context=24, width=16, **shape)
    model = build(config, 0, torch.float64).eval()
    with torch.no_grad():  # first values of biases and scales would hide mistakes
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).double()
    return model


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def model(request):
    return varied(request.param)
