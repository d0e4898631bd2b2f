"""Small models that the decoder can run, of several shapes; float64."""

import pytest
import torch

from helpers.models.config import GPTConfig
from helpers.models.gpt import build

SHAPES = {
    "llama": {"heads": 4},
    "grouped": {"heads": 4, "kv_heads": 2, "tied": False, "attention": "explicit"},
    "multi-query": {"heads": 3, "kv_heads": 1, "width": 18, "hidden": 7, "layers": 3},
    "one head, large epsilon": {"heads": 1, "layers": 1, "norm_eps": 0.3, "rotary_base": 50.0},
}


def small_model(**shape):
    config = GPTConfig(**{"vocab": 19, "context": 24, "width": 16, **shape})
    model = build(config, 0, torch.float64).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # first values of scales are 1, and would hide mistakes
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.3 * noise
    return model


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def model(request):
    return small_model(**request.param)


@pytest.fixture
def llama():
    return small_model(**SHAPES["grouped"])
