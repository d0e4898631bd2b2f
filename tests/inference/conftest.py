"""One thread, and small models of several shapes in float64."""

import pytest
import torch

from helpers.models.config import GPTConfig
from helpers.models.gpt import build

GPT2 = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}
SHAPES = {
    "llama": {"tied": False},
    "grouped": {"kv_heads": 2},
    "gpt2": GPT2,
    "gpt2 untied": GPT2 | {"tied": False},
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """For small models a second thread is slower, and changes the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def varied(dtype=torch.float64, seed=0, **changes):
    """Make a model whose logits differ clearly, and whose biases and scales are not 0 and 1."""
    shape = {"vocab": 19, "context": 24, "width": 16, "layers": 2, "heads": 4} | changes
    model = build(GPTConfig(**shape), seed, torch.float64).eval()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed + 1)
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator).double()
    return model.to(dtype)


@pytest.fixture(scope="session")
def make_model():
    return varied


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def model(request):
    return varied(**request.param)


@pytest.fixture(scope="module")
def llama():
    return varied()
