"""Bytes of a cache: our caches' own, transformers' own, and the papers' figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.models.caches.preallocated import Preallocated
from helpers.models.counts import bytes_per_sequence, bytes_per_token, cache_bytes, parameters
from helpers.models.gpt import GPT, GPTConfig, kept_by
from helpers.models.published import MODELS
from helpers.models.settings import Latent
from tests.models.peers import CACHES_LATENTS, REASON, peer_of

FACTS = json.loads(Path(__file__).with_name("published_caches.json").read_text())
SHAPE = {"vocab": 31, "context": 16, "width": 24, "layers": 3, "heads": 6}
KINDS = {
    "MHA": GPTConfig(**SHAPE),
    "GQA": GPTConfig(**SHAPE, kv_heads=2),
    "MQA": GPTConfig(**SHAPE, kv_heads=1),
    "MLA": GPTConfig(
        **SHAPE, mixer="latent", latent=Latent(kv_rank=10, query_rank=7, nope=4, rope=6, value=5)
    ),
    "GPT-2": GPTConfig(**SHAPE, norm="layer", positions="learned", mlp="gelu", bias=True),
}
NUMBERS = {
    "MHA": 2 * 6 * 4,
    "GPT-2": 2 * 6 * 4,
    "GQA": 2 * 2 * 4,
    "MQA": 2 * 4,
    "MLA": 10 + 6,
}  # per layer and token
every_kind = pytest.mark.parametrize("kind", KINDS)
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@every_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_of_our_cache(kind, dtype):
    config = KINDS[kind]
    assert bytes_per_token(config, dtype) == 3 * NUMBERS[kind] * dtype.itemsize
    assert bytes_per_sequence(config, dtype) == 0
    cache = Preallocated(kept_by(GPT(config, device="meta")), 5, 7, dtype)
    assert cache_bytes(config, 5, 7, dtype) == cache.bytes


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_bytes_of_transformers_cache(kind, dtype):
    if kind == "MLA" and not CACHES_LATENTS:
        pytest.skip(REASON)
    config = KINDS[kind]
    cache = peer_of(config).to(dtype)(torch.zeros(5, 7, dtype=torch.int64)).past_key_values
    found = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
    assert found == cache_bytes(config, 5, 7, dtype)


def test_kinds_in_turn():
    latent = Latent(kv_rank=10, nope=4, rope=4, value=5)
    config = replace(KINDS["GQA"], mixer=("latent", "attention", "latent"), latent=latent)
    assert bytes_per_token(config) == 2 * (2 * 14 + 16)


def test_states_of_fixed_size():
    mamba = GPTConfig(**SHAPE, mixer="mamba")
    assert bytes_per_token(mamba) == 0
    state = bytes_per_sequence(mamba, torch.float32)
    assert state == 2 * bytes_per_sequence(mamba) > 0
    assert cache_bytes(mamba, 4, 0) == cache_bytes(mamba, 4, 16) == 4 * bytes_per_sequence(mamba)
    both = replace(mamba, mixer=("mamba", "attention", "mamba"))
    assert cache_bytes(both, 1, 5) == bytes_per_sequence(mamba) * 2 // 3 + 5 * 2 * NUMBERS["MHA"]


def test_deepseek_v2():
    facts, config = FACTS["deepseek_v2"], MODELS["DeepSeek-V2"].config
    elements = bytes_per_token(config) // 2
    assert f"{elements / 1000:.1f}" == str(facts["mla_elements_thousands"])
    # table 1: as many as GQA with 2.25 groups, of heads of 128
    assert elements == facts["groups"] * 2 * 128 * config.layers
    # the abstract's reduction: 6 bits an element, against 16 in DeepSeek 67B
    before = bytes_per_token(MODELS["DeepSeek 67B"].config)
    deployed = elements * facts["deployed_bits"] / 8
    assert f"{100 * (1 - deployed / before):.1f}" == str(facts["reduction_percent"])
    share = round(elements / 10 / facts["large_moe_mha_thousands"])
    assert share == facts["large_moe_mla_percent"]


def test_deepseek_v2_lite():
    facts = FACTS["deepseek_v2"]["small_moe"]
    heads, d = facts["heads"], facts["head_width"]
    mha = GPTConfig(width=heads * d, heads=heads, layers=facts["layers"])
    mla = replace(mha, mixer="latent", latent=Latent.of(d))
    thousands = [bytes_per_token(config) / 2 / 1000 for config in (mha, mla)]
    assert f"{thousands[0]:.1f}" == str(facts["mha_thousands"])
    assert f"{thousands[1]:.1f}" == str(facts["mla_thousands"])
    assert round(100 * thousands[1] / thousands[0]) == facts["mla_percent"]


def test_opt_13b():
    facts = FACTS["opt_13b"]
    shape = {name: facts[name] for name in ("width", "layers", "heads", "context")}
    config = GPTConfig(**shape, norm="layer", positions="learned", mlp="gelu", bias=True)
    assert bytes_per_token(config, torch.float16) == facts["kib_per_token"] * 1024
    request = cache_bytes(config, 1, facts["context"], torch.float16)
    assert f"{request / 2**30:.1f}" == str(facts["gib_per_request"])


def test_errors_and_edges():
    config = KINDS["MHA"]
    assert cache_bytes(config, 0, 5) == cache_bytes(config, 5, 0) == 0
    assert cache_bytes(config, 1, 16) == 16 * bytes_per_token(config)
    with pytest.raises(ValueError, match="17 tokens, but the context allows 16"):
        cache_bytes(config, 1, 17)
    for sequences, tokens in ((-1, 2), (1, -2)):
        with pytest.raises(ValueError, match="neither may be negative"):
            cache_bytes(config, sequences, tokens)


# the published models


@pytest.mark.parametrize("name", MODELS)
def test_parameters(name):
    assert round(MODELS[name].parameters / 1e9, 1) == FACTS["parameters_billions"][name]
    assert MODELS[name].source


def test_the_shapes_that_a_cache_depends_on():
    """(layers, heads, key/value heads, width, context) of the released configurations."""
    found = {
        name: (c.layers, c.heads, c.key_heads, c.width, c.context)
        for name, c in ((name, model.config) for name, model in MODELS.items())
    }
    assert found == {
        "Llama 2 7B": (32, 32, 32, 4096, 4096),
        "Llama 2 70B": (80, 64, 8, 8192, 4096),
        "DeepSeek 67B": (95, 64, 8, 8192, 4096),
        "Llama 3 405B": (126, 128, 8, 16_384, 131_072),
        "DeepSeek-V2": (60, 128, 128, 5120, 131_072),
    }


def test_deepseek_v2_is_its_attention_and_its_experts():
    """59 blocks have a router, 2 shared and 160 routed experts of width 1,536 (section 3.1.2)."""
    model = MODELS["DeepSeek-V2"]
    c = model.config
    expert, dense = 3 * c.width * 1536, 3 * c.width * c.hidden
    experts = 59 * ((160 + 2) * expert + 160 * c.width - dense)
    assert parameters(replace(c, experts=None)).total + experts == model.parameters
    assert model.parameters == 235_741_434_880  # the released checkpoint
