"""Activation bytes agree with measured runs and with Korthikanti et al."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.measure.memory import memory_of
from helpers.models.activation_counts import activation_bytes, block_activation_bytes
from helpers.models.config import CHOICES, PRESETS, GPTConfig
from helpers.models.parameter_counts import parameters
from helpers.plans.activation_memory import korthikanti
from tests.models.random_configs import configs
from tests.models.steps import bytes_saved, step_of

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
WAYS = {"none": "no parallelism", "selective": "tensor, selective", "full": "full"}
every_attention = pytest.mark.parametrize("attention", CHOICES["attention"])
every_recompute = pytest.mark.parametrize("recompute", CHOICES["recompute"])


@every_recompute
@every_attention
@given(config=configs(), sequences=st.integers(0, 3), dtype=st.sampled_from(DTYPES), data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_activations_are_what_autograd_saves(attention, recompute, config, sequences, dtype, data):
    config = replace(config, attention=attention, recompute=recompute)
    tokens = data.draw(st.integers(1, config.context))
    model, step = step_of(config, sequences, tokens, dtype)
    assert bytes_saved(step, model) == activation_bytes(config, sequences, tokens, dtype)


def test_each_block_counts_by_its_own_mixer():
    config = GPTConfig(layers=3, mixer=("mamba", "attention", "mamba"), positions="none")
    model, step = step_of(config, 2, 16)
    assert bytes_saved(step, model) == activation_bytes(config, 2, 16)


@every_recompute
@every_attention
def test_activations_and_parameters_of_memory_of(attention, recompute):
    config = GPTConfig(attention=attention, recompute=recompute)
    model, step = step_of(config, 2, 16)
    found = memory_of(step, model)
    assert found.activations == activation_bytes(config, 2, 16)
    assert found.parameters == found.gradients == 4 * parameters(config).total


@every_recompute
def test_ours_is_korthikantis_without_dropout(recompute):
    """In 16 bits, their layer differs from ours in dropout, the norms' statistics and the mask."""
    gpt2_like = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}
    config = GPTConfig(width=64, heads=4, attention="explicit", recompute=recompute, **gpt2_like)
    sequences, tokens = 3, 16
    places = sequences * tokens
    theirs = korthikanti(sequences, tokens, config.width, config.heads, 1, WAYS[recompute])
    if recompute != "full":
        theirs -= 2 * places * config.width  # two masks
        theirs += 2 * 2 * 2 * places  # mean and inverse deviation of two norms
    if recompute == "none":
        theirs -= 3 * config.heads * tokens * places  # a mask, and the dropped probabilities
        theirs += tokens**2
    assert block_activation_bytes(config, sequences, tokens, torch.bfloat16) == theirs


@every_attention
def test_recomputing_keeps_less(attention):
    config = GPTConfig(attention=attention)
    none, selective, full = (
        activation_bytes(replace(config, recompute=recompute), 2)
        for recompute in CHOICES["recompute"]
    )
    assert full < selective < none


@pytest.mark.parametrize("name", PRESETS)
def test_presets_need_no_model(name):
    assert activation_bytes(GPTConfig.preset(name), 1, dtype=torch.bfloat16) > 0


@pytest.mark.parametrize("count", [activation_bytes, block_activation_bytes])
@pytest.mark.parametrize("tokens", [0, 65])
def test_no_more_tokens_than_the_context(count, tokens):
    with pytest.raises(ValueError, match=f"{tokens} tokens; the context allows 1 to 64"):
        count(GPTConfig(), 1, tokens)
