"""One thread, and small models of several shapes in float64."""

import pytest
import torch

from helpers.models.gpt import GPTConfig, build

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


def noisy(config, seed=0):
    """Make a model in float64 whose logits differ clearly, and whose biases are not 0."""
    model = build(config, seed, torch.float64).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator).double()
    return model


def varied(dtype=torch.float64, seed=0, **changes):
    shape = {"vocab": 19, "context": 24, "width": 16, "layers": 2, "heads": 4} | changes
    return noisy(GPTConfig(**shape), seed).to(dtype)


@torch.no_grad()
def alone(model, prompt, new_tokens, stop=()):
    """Greedy tokens of one sequence in one process, each from the whole text anew."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + new_tokens:
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


@pytest.fixture(scope="session")
def make_model():
    return varied


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def model(request):
    return varied(**request.param)


@pytest.fixture(scope="module")
def llama():
    return varied()
