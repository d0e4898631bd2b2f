"""Configurations raise errors for bad values, fill in defaults, and have presets of known size."""

import dataclasses

import pytest
import torch

from helpers.models.config import CHOICES, PRESETS, GPTConfig
from helpers.models.gpt import GPT
from helpers.models.initialization import first_value
from helpers.models.latent_config import Latent

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


# (layers, width, heads, key/value heads, context, vocabulary): Radford et al. 2019, table 2; Brown
# et al. 2020, table 2.1; Touvron et al. 2023, Llama 2; Grattafiori et al. 2024, table 3; Narayanan
# et al. 2021, table 1
PUBLISHED = {
    "124M": (12, 768, 12, 12, 1024, 50_257),
    "355M": (24, 1024, 16, 16, 1024, 50_257),
    "774M": (36, 1280, 20, 20, 1024, 50_257),
    "1.5B": (48, 1600, 25, 25, 1024, 50_257),
    "175B": (96, 12_288, 96, 96, 2048, 50_257),
    "7B": (32, 4096, 32, 32, 4096, 32_000),
    "13B": (40, 5120, 40, 40, 4096, 32_000),
    "70B": (80, 8192, 64, 8, 4096, 32_000),
    "8B": (32, 4096, 32, 8, 8192, 128_256),
    "405B": (126, 16_384, 128, 8, 8192, 128_256),
    "1T": (128, 25_600, 160, 160, 2048, 51_200),
}


# the MLPs' inner widths: Llama 2's released config.json; Grattafiori et al. 2024, table 3
HIDDEN = {"7B": 11_008, "13B": 13_824, "70B": 28_672, "8B": 14_336, "405B": 53_248}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_shapes_of_their_papers(name):
    config = GPTConfig.preset(name)
    if name not in PUBLISHED:  # the course's own, of bytes
        assert (config.vocab, config.context, config.norm, config.tied) == (256, 128, "rms", True)
        assert config.head_width >= 12
        return
    shape = (config.layers, config.width, config.heads, config.key_heads)
    assert (*shape, config.context, config.vocab) == PUBLISHED[name]
    gpt = ("layer", "learned", "gelu", True, True)
    llama = ("rms", "rotary", "swiglu", False, False)
    kind = (config.norm, config.positions, config.mlp, config.bias, config.tied)
    assert kind == (llama if name in HIDDEN else gpt)
    assert config.inner == HIDDEN.get(name, 4 * config.width)


def test_the_defaults_are_a_small_llama_of_bytes():
    config = GPTConfig()
    assert (config.vocab, config.context, config.width, config.layers) == (256, 64, 64, 2)
    assert (config.heads, config.key_heads, config.inner) == (4, 4, 176)
    assert (config.norm, config.positions, config.mlp) == ("rms", "rotary", "swiglu")
    assert (config.mixer, config.attention, config.recompute) == ("attention", "sdpa", "none")
    assert (config.tied, config.bias, config.dropout) == (True, False, 0)
    assert (config.rotary_base, config.rotary_share, config.norm_eps) == (10_000, 1, 1e-5)


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


@pytest.mark.parametrize(
    "field", ["vocab", "context", "width", "layers", "heads", "kv_heads", "hidden"]
)
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
    with pytest.raises(ValueError, match="3 mixers, but 2 layers"):
        GPTConfig(layers=2, mixer=("attention",) * 3)
    with pytest.raises(ValueError, match=r"mixer must be one of attention, .*not 'rnn'"):
        GPTConfig(layers=2, mixer=("attention", "rnn"))


def test_each_mixer_rotates_its_own_width():
    latent = Latent(kv_rank=8, nope=4, rope=6, value=4)
    assert GPTConfig(heads=4).rotary_width == 16
    assert GPTConfig(mixer="latent", latent=latent).rotary_width == 6
    assert GPTConfig(mixer="latent", heads=4).latent_widths == Latent.of(16)
    assert GPTConfig(mixer=("attention", "attention"), latent=latent).rotary_width == 16
    assert GPTConfig(width=12, heads=4, mixer="latent").rotary_width == 2  # its heads may be odd
    with pytest.raises(ValueError, match="rotate widths of 6 and 16, but a model has one table"):
        GPTConfig(mixer=("attention", "latent"), latent=latent)
    both = GPTConfig(mixer=("attention", "latent"), latent=latent, width=24)
    assert both.rotary_width == 6
    GPTConfig(mixer=("attention", "latent"), latent=latent, positions="learned")


def test_blocks_without_mlps_have_no_inner_width():
    assert GPTConfig(mlp="none").inner == 0
    assert GPTConfig(mlp="none", hidden=7).inner == 0


def test_rotary_positions_turn_a_share_of_a_head():
    half = GPTConfig(width=32, heads=4, rotary_share=0.5)
    assert (half.head_width, half.rotary_width) == (8, 4)
    assert GPTConfig(width=32, heads=4).rotary_width == 8
    assert GPTConfig(mixer="mamba").rotary_width == 0  # no head to turn
    assert GPTConfig(width=32, heads=4, layers=2, mixer=("mamba", "attention")).rotary_width == 8
    for share in (0, -0.5, 1.5, float("nan")):
        with pytest.raises(ValueError, match="rotary_share must be above 0 and at most 1"):
            GPTConfig(rotary_share=share)
    with pytest.raises(ValueError, match=r"an even part of a head, but 0.375 of 8 is 3.0"):
        GPTConfig(width=32, heads=4, rotary_share=0.375)


def test_sizes_of_state_space_mixers_count_where_they_are_used():
    with pytest.raises(ValueError, match="mamba2 heads of 64 channels do not divide 48"):
        GPTConfig(width=24, layers=2, mixer=("attention", "mamba2"))
    GPTConfig(width=24, mixer="mamba")


@pytest.mark.parametrize("dropout", [-0.1, 1, 1.5, float("nan")])
def test_dropout_is_a_probability_below_one(dropout):
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), not"):
        GPTConfig(dropout=dropout)


def test_a_config_builds_its_model():
    model = GPTConfig().build(torch.float64, "meta", blocks=[1], first=False)
    assert isinstance(model, GPT)
    assert list(model.blocks) == ["1"]
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float64, "meta")}
    assert not model.first
    assert {p.device.type for p in GPTConfig().build().parameters()} == {"cpu"}


def test_first_values_know_the_number_of_layers():
    """What writes into the residual stream begins smaller in a deep model."""
    name, shape = "blocks.0.mlp.down.weight", (24, 64)
    for layers in (1, 8):
        config = GPTConfig(width=24, heads=4, layers=layers)
        expected = first_value(name, shape, 3, layers)
        assert torch.equal(config.first_value(name, shape, 3), expected)
    assert not torch.equal(expected, first_value(name, shape, 3, 1))


def test_frozen_and_by_keyword_alone():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPTConfig().width = 3
    with pytest.raises(TypeError):
        GPTConfig(256)
    assert hash(GPTConfig()) == hash(GPTConfig())


def test_the_smallest():
    tiny = GPTConfig(vocab=1, context=1, width=2, layers=1, heads=1)
    assert GPT(tiny)(torch.zeros(1, 1, dtype=torch.long)).shape == (1, 1, 1)


def test_a_length_is_from_1_to_the_context():
    config = GPTConfig(context=7)
    assert [config.length(tokens) for tokens in (None, 1, 7)] == [7, 1, 7]
    for tokens in (0, 8):
        with pytest.raises(ValueError, match=f"{tokens} tokens; the context allows 1 to 7"):
            config.length(tokens)
