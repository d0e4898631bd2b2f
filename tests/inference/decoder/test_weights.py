"""The fused matrices are the model's own, scaled and reordered; other models are refused."""

from dataclasses import replace

import pytest
import torch

from helpers.inference.decoder.weights import Weights, neighbours, refusal
from helpers.models.config import GPTConfig
from helpers.models.gpt import GPT, build


def test_pairs_become_neighbours():
    matrix = torch.arange(12.0)[:, None].expand(12, 2)  # two heads of width 6
    assert neighbours(matrix, 6)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_each_matrix_computes_what_the_models_layers_compute(model):
    config, weights = model.config, Weights.of(model)
    x = torch.randn(5, config.width, dtype=torch.float64)
    root, d, sizes = config.width**0.5, config.head_width, config.heads * config.head_width
    order = neighbours(torch.arange(d)[:, None], d)[:, 0]
    for block, fused in zip(model.blocks.values(), weights.blocks, strict=True):
        # x stands for a row that was divided by the root of its squares' sum
        y = x * root * block.attention_norm.weight
        q, k, v = (
            layer(y).unflatten(1, (-1, d))
            for layer in (block.attention.query, block.attention.key, block.attention.value)
        )
        expected = torch.cat([q[..., order] / d**0.5, k[..., order], v], 1).flatten(1)
        torch.testing.assert_close(x @ fused.qkv, expected, rtol=0, atol=1e-12)
        y = x * root * block.mlp_norm.weight
        expected = torch.cat([block.mlp.gate(y), block.mlp.up(y)], 1)
        torch.testing.assert_close(x @ fused.gate_up, expected, rtol=0, atol=1e-12)
        z = torch.randn(5, sizes, dtype=torch.float64)
        torch.testing.assert_close(z @ fused.out, block.attention.out(z), rtol=0, atol=1e-12)
        z = torch.randn(5, config.inner, dtype=torch.float64)
        torch.testing.assert_close(z @ fused.down, block.mlp.down(z), rtol=0, atol=1e-12)
    expected = model.head(x * root * model.norm.weight)
    torch.testing.assert_close(x @ weights.head, expected, rtol=0, atol=1e-12)
    assert weights.head.is_contiguous()
    assert weights.blocks[0].qkv.is_contiguous()
    cos, sin = model.rotary(config.context)
    torch.testing.assert_close(weights.angles[:, 0], torch.complex(cos, sin), rtol=0, atol=1e-12)


def test_the_weights_are_a_copy_without_gradients(llama):
    weights = Weights.of(llama)
    before = [weights.embedding.clone(), weights.head.clone(), weights.blocks[0].out.clone()]
    with torch.no_grad():
        for parameter in llama.parameters():
            parameter.zero_()
    after = [weights.embedding, weights.head, weights.blocks[0].out]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new)
        assert not new.requires_grad


def test_bytes_are_those_of_the_matrices(model):
    config = model.config
    matrices = config.width * (2 * config.heads + 2 * config.key_heads) * config.head_width
    matrices += 3 * config.width * config.inner
    expected = 8 * (config.layers * matrices + 2 * config.vocab * config.width)
    assert Weights.of(model).bytes == expected


LLAMA = GPTConfig(vocab=5, context=4, width=8, heads=2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"norm": "layer"}, "norm is 'layer', not 'rms'"),
        ({"positions": "learned"}, "positions is 'learned', not 'rotary'"),
        ({"mlp": "gelu"}, "mlp is 'gelu', not 'swiglu'"),
        ({"bias": True}, "bias is True, not False"),
    ],
)
def test_other_shapes_are_refused_with_the_reason(change, reason):
    model = build(replace(LLAMA, **change), 0)
    with pytest.raises(ValueError, match=f"cannot run this model: {reason}; use the model"):
        Weights.of(model)


def test_another_mixer_is_refused(monkeypatch):
    model = build(LLAMA, 0)
    monkeypatch.setattr(GPTConfig, "mixer_of", lambda self, n: ["attention", "mamba"][n])
    assert refusal(model) == "block 1 is 'mamba', not 'attention'"


@pytest.mark.parametrize(
    "stage", [{"blocks": [0]}, {"first": False}, {"last": False}], ids=["blocks", "first", "last"]
)
def test_a_stage_of_a_pipeline_is_refused(stage):
    assert refusal(GPT(LLAMA, **stage)) == "it is a stage of a pipeline"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_refused(dtype):
    found = refusal(build(LLAMA, 0, dtype))
    assert found == f"its numbers are {dtype}, not float32 or float64"
    assert refusal(build(LLAMA, 0)) is None
