"""Configurations raise errors for bad values, fill in defaults, and have presets of known size."""

import dataclasses

import pytest
import torch

from helpers.models.counts import parameters
from helpers.models.gpt import GPT, GPTConfig
from helpers.models.initialization import first_value
from helpers.models.settings import MAMBA, MAMBA2, Latent, Mamba2Settings, MambaSettings
from helpers.models.shape import CHOICES, PRESETS
from helpers.models.vae import PRESETS as VAES
from helpers.models.vae import VAE, VAEConfig

UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


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


@pytest.mark.parametrize("name", PRESETS | PUBLISHED)
def test_presets_have_the_sizes_of_their_names_and_the_shapes_of_their_papers(name):
    config = GPTConfig.preset(name)
    # Llama 2's 7B has 6.7 billion. The small presets are within 6 % too.
    named = float(name[:-1]) * UNITS[name[-1]]
    assert parameters(config).total == pytest.approx(named, rel=0.06)
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
    with pytest.raises(
        ValueError, match="no preset '2M'; choose one of 100k, 300k, 1M, 3M, 10M, 30M, 1"
    ):
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


@pytest.mark.parametrize("field", CHOICES)
def test_choices_are_named(field):
    with pytest.raises(ValueError, match=f"{field} must be one of {CHOICES[field][0]}, .*'other'"):
        GPTConfig(**{field: "other"})


def test_each_mixer_rotates_its_own_width():
    latent = Latent(kv_rank=8, nope=4, rope=6, value=4)
    assert GPTConfig(heads=4).rotary_width == 16
    assert GPTConfig(mixer="latent", latent=latent).rotary_width == 6
    assert GPTConfig(mixer="latent", heads=4).latent_widths == Latent.of(16)
    assert GPTConfig(mixer=("attention", "attention"), latent=latent).rotary_width == 16
    assert GPTConfig(width=12, heads=4, mixer="latent").rotary_width == 2  # its heads may be odd
    both = GPTConfig(mixer=("attention", "latent"), latent=latent, width=24)
    assert both.rotary_width == 6


def test_blocks_without_mlps_have_no_inner_width():
    assert GPTConfig(mlp="none").inner == 0
    assert GPTConfig(mlp="none", hidden=7).inner == 0


def test_rotary_positions_turn_a_share_of_a_head():
    half = GPTConfig(width=32, heads=4, rotary_share=0.5)
    assert (half.head_width, half.rotary_width) == (8, 4)
    assert GPTConfig(width=32, heads=4).rotary_width == 8
    assert GPTConfig(mixer="mamba").rotary_width == 0  # no head to turn
    assert GPTConfig(width=32, heads=4, layers=2, mixer=("mamba", "attention")).rotary_width == 8


def test_a_config_builds_its_model():
    model = GPTConfig().build(torch.float64, "meta", blocks=[1], first=False)
    assert isinstance(model, GPT)
    assert list(model.blocks) == ["1"]
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float64, "meta")}
    assert not model.first
    assert {p.device.type for p in GPTConfig().build().parameters()} == {"cpu"}


def test_frozen_and_by_keyword_alone():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPTConfig().width = 3
    with pytest.raises(TypeError):
        GPTConfig(256)
    assert hash(GPTConfig()) == hash(GPTConfig())


def test_a_length_is_from_1_to_the_context():
    config = GPTConfig(context=7)
    assert [config.length(tokens) for tokens in (None, 1, 7)] == [7, 1, 7]
    for tokens in (0, 8):
        with pytest.raises(ValueError, match=f"{tokens} tokens; the context allows 1 to 7"):
            config.length(tokens)


WHOLE = {  # each configuration, with its fields that are sizes; True: the field may be None
    GPTConfig: dict.fromkeys(("vocab", "context", "width", "layers", "heads"), False)
    | dict.fromkeys(("kv_heads", "hidden"), True),
    VAEConfig: dict.fromkeys(("side", "width", "layers", "latent"), False),
    MambaSettings: dict.fromkeys(("state", "expand", "convolution"), False) | {"rank": True},
    Mamba2Settings: dict.fromkeys(
        ("state", "expand", "convolution", "head", "groups", "chunk"), False
    ),
    Latent: dict.fromkeys(("kv_rank", "nope", "rope", "value"), False) | {"query_rank": True},
}
GIVEN = {Latent: {"kv_rank": 8, "nope": 4, "rope": 2, "value": 4}}


@pytest.mark.parametrize("size", [0, -1, 2.0, "4", None])
@pytest.mark.parametrize(
    ("kind", "field"), [(kind, field) for kind, fields in WHOLE.items() for field in fields]
)
def test_sizes_are_positive_whole_numbers(kind, field, size):
    given = GIVEN.get(kind, {}) | {field: size}
    if size is None and WHOLE[kind][field]:
        assert getattr(kind(**given), field) is None
        return
    with pytest.raises(ValueError, match=f"{field} must be a positive whole number, not {size!r}"):
        kind(**given)


LATENT = Latent(kv_rank=8, nope=4, rope=6, value=4)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        *(({"dropout": d}, r"dropout must be in \[0, 1\), not") for d in (-0.1, 1, float("nan"))),
        ({"mixer": ("attention", "attention")}, None),
        ({"mixer": ("attention",)}, "1 mixers, but 2 layers"),
        ({"mixer": ("attention",) * 3}, "3 mixers, but 2 layers"),
        ({"mixer": ("attention", "rnn")}, r"mixer must be one of attention, .*not 'rnn'"),
        ({"heads": 5}, "5 heads do not divide a width of 64"),
        ({"kv_heads": 3}, "3 kv_heads do not divide 4 heads"),
        ({"kv_heads": 8}, "8 kv_heads do not divide 4 heads"),
        ({"width": 12}, r"rotary positions need an even head width .*, not 3"),
        ({"width": 12, "positions": "learned"}, None),
        ({"width": 12, "positions": "none"}, None),
        ({"width": 12, "mixer": "mamba"}, None),  # no head to turn
        ({"rotary_share": 0.375, "width": 32}, r"an even part of a head, but 0.375 of 8 is 3.0"),
        ({"rotary_share": 0.25, "width": 32}, None),
        ({"rotary_share": 1.0, "width": 12, "positions": "none"}, None),  # odd, but whole
        *(
            ({"rotary_share": s}, "rotary_share must be above 0 and at most 1")
            for s in (0, -1, 1.5)
        ),
        ({"rotary_share": float("nan")}, "rotary_share must be above 0 and at most 1"),
        ({"mixer": ("attention", "latent"), "latent": LATENT}, "rotate widths of 6 and 16, but a"),
        ({"mixer": ("attention", "latent"), "latent": LATENT, "positions": "learned"}, None),
        ({"mixer": ("latent", "mamba"), "latent": LATENT}, None),
        ({"width": 24, "mixer": ("attention", "mamba2")}, "heads of 64 channels do not divide 48"),
        ({"width": 24, "mamba2": Mamba2Settings(head=5)}, None),  # unused
    ],
    ids=str,
)
def test_conditions_of_several_parts(given, why):
    if why is None:
        GPTConfig(**given)
        return
    with pytest.raises(ValueError, match=why):
        GPTConfig(**given)


def test_the_widths_of_latent_attention():
    v2 = Latent(kv_rank=512, nope=128, rope=64, value=128)  # DeepSeek-V2, section 3.1.2
    assert Latent.of(128) == v2
    for d, rope in ((1, 2), (2, 2), (3, 2), (6, 2), (7, 2), (8, 4), (10, 4)):
        assert Latent.of(d) == Latent(kv_rank=4 * d, nope=d, rope=rope, value=d)
    with pytest.raises(ValueError, match="rope must be even, not 3"):
        dataclasses.replace(v2, rope=3)
    with pytest.raises(ValueError, match="values of width 193, but queries and keys have 128"):
        dataclasses.replace(v2, value=193)
    dataclasses.replace(v2, value=192)


def test_state_space_sizes_are_published():
    """Gu and Dao 2023, section 3.4 and appendix E; `Mamba2` in the authors' code."""
    assert (MambaSettings(), Mamba2Settings()) == (MAMBA, MAMBA2)
    assert (MAMBA.state, MAMBA.expand, MAMBA.convolution) == (16, 2, 4)
    assert (MAMBA.channels(768), MAMBA.rank_of(768)) == (1536, 48)
    assert MAMBA.rank_of(100) == 7  # 6.25, rounded up
    assert MambaSettings(rank=5).rank_of(768) == 5
    assert (MAMBA2.state, MAMBA2.head, MAMBA2.groups) == (128, 64, 1)
    assert (MAMBA2.expand, MAMBA2.convolution, MAMBA2.chunk) == (2, 4, 64)
    assert (MAMBA2.channels(768), MAMBA2.heads(768)) == (1536, 24)
    assert Mamba2Settings(head=8, groups=3).heads(12) == 3
    with pytest.raises(ValueError, match=r"heads of 64 channels do not divide 96 .*width of 48"):
        MAMBA2.heads(48)
    with pytest.raises(ValueError, match="4 mamba2 groups do not divide 6 heads"):
        Mamba2Settings(head=8, groups=4).heads(24)


def test_autoencoders():
    """Kingma and Welling 2013, section 5 and figure 5."""
    assert {name: VAEConfig.preset(name).pixels for name in VAES} == {"digits": 64, "mnist": 784}
    assert VAEConfig.preset("digits") == VAEConfig(side=8, width=128, layers=2, latent=8)
    changed = VAEConfig.preset("mnist", latent=2)
    assert changed == VAEConfig(side=28, width=500, layers=1, latent=2)
    assert VAEConfig.preset("mnist").latent == 20
    made = VAEConfig.preset("digits").build(torch.float64, "meta", seed=7)
    assert isinstance(made, VAE)
    assert (made.seed, made.pixels.weight.dtype) == (7, torch.float64)
    with pytest.raises(ValueError, match="no preset 'faces'; choose one of digits, mnist"):
        VAEConfig.preset("faces")
    first = VAEConfig(layers=3).first_value("encoder.0.weight", (400, 100), 5)
    assert torch.equal(first, first_value("encoder.0.weight", (400, 100), 5, 3))
