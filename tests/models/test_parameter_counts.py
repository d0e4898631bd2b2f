"""Parameters agree with the model, and with published figures."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from helpers.models.config import GPTConfig
from helpers.models.gpt import GPT
from helpers.models.parameter_counts import parameters
from tests.models.random_configs import configs

PUBLISHED = json.loads(Path(__file__).with_name("published_counts.json").read_text())["parameters"]


@given(configs())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_parameters_by_what_they_do(config):
    count = parameters(config)
    model = GPT(config, device="meta")
    by_part = dict.fromkeys(("embedding", "positions", "head", "norms"), 0)
    by_part |= dict.fromkeys(("mixers", "mlp", "biases", "others"), 0)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            part = "norms"
        elif name.endswith("bias"):
            part = "biases"
        elif "convolution" in name or name.endswith("A_log"):
            part = "others"
        elif name.startswith("blocks") and ".mlp." not in name:
            part = "mixers" if parameter.dim() == 2 else "others"
        else:
            part = next(p for p in ("mlp", "embedding", "positions", "head") if p in name)
        by_part[part] += parameter.numel()
    assert {part: getattr(count, part) for part in by_part} == by_part
    assert count.total == sum(by_part.values())
    assert count.blocks == count.total - sum(by_part[p] for p in ("embedding", "positions", "head"))


def test_each_mixer_counts_as_often_as_it_occurs():
    mixer = ("mamba2", "attention", "mamba2", "mamba", "mamba2")
    config = GPTConfig(vocab=11, context=7, width=64, heads=4, layers=5, mixer=mixer, bias=True)
    model = GPT(config, device="meta")
    assert parameters(config).total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED["exact"])
def test_parameters_of_released_models(name):
    assert parameters(GPTConfig.preset(name)).total == PUBLISHED["exact"][name]


@pytest.mark.parametrize("name", PUBLISHED["printed_billions"])
def test_parameters_in_tables(name):
    billions = parameters(GPTConfig.preset(name)).total / 1e9
    assert round(billions, 1) == PUBLISHED["printed_billions"][name]


@pytest.mark.parametrize("name", ["124M", "1.5B", "175B"])
def test_non_embedding_is_12_layers_width_squared(name):
    config = GPTConfig.preset(name)
    assert parameters(config).non_embedding == 12 * config.layers * config.width**2
