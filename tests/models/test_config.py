"""Configurations raise errors for bad values, fill in defaults, and have presets of known size."""

import dataclasses

import pytest
import torch

from helpers.models.config import CHOICES, PRESETS, GPTConfig
from helpers.models.gpt import GPT

UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_parameters_that_they_are_named_for(name):
    config = dataclasses.replace(GPTConfig.preset(name), context=1, layers=1)
    one = sum(p.numel() for p in GPT(config, device="meta").parameters())
    two = sum(
        p.numel() for p in GPT(dataclasses.replace(config, layers=2), device="meta").parameters()
    )
    whole = GPTConfig.preset(name)
    positions = (whole.context - 1) * whole.width if whole.positions == "learned" else 0
    total = one + (whole.layers - 1) * (two - one) + positions
    # Llama 2's 7B has 6.7 billion. The small presets are within 6 % too.
    assert total == pytest.approx(float(name[:-1]) * UNITS[name[-1]], rel=0.06)


def test_a_preset_with_changes():
    changed = GPTConfig.preset("124M", layers=2, attention="explicit")
    assert (changed.layers, changed.attention, changed.width) == (2, "explicit", 768)
    with pytest.raises(ValueError, match="no preset '2M'; choose one of 100k, 300k, 1M"):
        GPTConfig.preset("2M")
    with pytest.raises(TypeError, match="depth"):
        GPTConfig.preset("1M", depth=3)


def test_what_stands_in_for_none():
    config = GPTConfig(width=96, heads=6)
    assert (config.key_heads, config.head_width) == (6, 16)
    assert config.inner == 256  # 8/3 of 96, a multiple of 8
    assert GPTConfig(width=100, heads=2).inner == 272  # 266.7 rounded up
    assert GPTConfig(width=100, heads=2, mlp="gelu").inner == 400
    assert GPTConfig(width=100, heads=2, hidden=7).inner == 7
    assert GPTConfig(heads=4, kv_heads=1).key_heads == 1


@pytest.mark.parametrize("field", ["vocab", "context", "width", "layers", "heads", "kv_heads"])
@pytest.mark.parametrize("size", [0, -1, 2.0, "4"])
def test_sizes_are_positive_whole_numbers(field, size):
    with pytest.raises(ValueError, match=f"{field} must be a positive whole number, not"):
        GPTConfig(**{field: size})


@pytest.mark.parametrize("field", ["vocab", "context", "width", "layers", "heads"])
def test_only_two_sizes_may_be_left_out(field):
    with pytest.raises(ValueError, match=f"{field} must be a positive whole number, not None"):
        GPTConfig(**{field: None})


@pytest.mark.parametrize("field", CHOICES)
def test_choices_are_named(field):
    with pytest.raises(ValueError, match=f"{field} must be one of {CHOICES[field][0]}, .*'other'"):
        GPTConfig(**{field: "other"})


def test_sizes_divide_each_other():
    with pytest.raises(ValueError, match="5 heads do not divide a width of 64"):
        GPTConfig(heads=5)
    with pytest.raises(ValueError, match="3 kv_heads do not divide 4 heads"):
        GPTConfig(kv_heads=3)
    with pytest.raises(ValueError, match="8 kv_heads do not divide 4 heads"):
        GPTConfig(kv_heads=8)
    with pytest.raises(ValueError, match=r"rotary positions need an even head width .*, not 3"):
        GPTConfig(width=12, heads=4)
    GPTConfig(width=12, heads=4, positions="learned")


def test_a_mixer_for_all_blocks_or_one_for_each():
    assert GPTConfig(layers=2, mixer=("attention", "attention")).mixer_of(1) == "attention"
    assert GPTConfig().mixer_of(1) == "attention"
    with pytest.raises(ValueError, match="1 mixers, but 2 layers"):
        GPTConfig(layers=2, mixer=("attention",))
    with pytest.raises(ValueError, match="mixer must be one of attention, .*not 'rnn'"):
        GPTConfig(layers=2, mixer=("attention", "rnn"))


@pytest.mark.parametrize("dropout", [-0.1, 1, 1.5, float("nan")])
def test_dropout_is_a_probability_below_one(dropout):
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), not"):
        GPTConfig(dropout=dropout)


def test_a_config_builds_its_model():
    model = GPTConfig().build(torch.float64, "meta", blocks=[1], first=False)
    assert isinstance(model, GPT)
    assert list(model.blocks) == ["1"]
    assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_frozen_and_by_keyword_alone():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPTConfig().width = 3
    with pytest.raises(TypeError):
        GPTConfig(256)
    assert hash(GPTConfig()) == hash(GPTConfig())


def test_the_smallest():
    tiny = GPTConfig(vocab=1, context=1, width=2, layers=1, heads=1)
    assert GPT(tiny)(torch.zeros(1, 1, dtype=torch.long)).shape == (1, 1, 1)
