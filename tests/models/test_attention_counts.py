"""What one attention module has, computes and saves is what the counts say."""

from itertools import product

import pytest
import torch

from helpers.measure.flops import flops_of
from helpers.models import attention_counts as counts
from helpers.models.attention import Attention
from helpers.models.config import GPTConfig
from helpers.models.gpt import GPT
from tests.models.steps import bytes_saved

KINDS = [("sdpa", "none"), ("sdpa", "selective"), ("explicit", "none"), ("explicit", "selective")]
every_kind = pytest.mark.parametrize(
    ("kind", "kv_heads", "bias"),
    [
        (kind, kv, bias)
        for kind, (kv, bias) in product(KINDS, [(None, True), (2, False), (1, True)])
    ],
)


def config_of(kind, kv_heads, bias):
    attention, recompute = kind
    shape = {"width": 24, "heads": 4, "kv_heads": kv_heads, "bias": bias, "context": 9}
    return GPTConfig(attention=attention, recompute=recompute, **shape)


@every_kind
def test_what_it_has(kind, kv_heads, bias):
    config = config_of(kind, kv_heads, bias)
    found, module = counts.parameters(config), Attention(config)
    assert found.matrices == sum(p.numel() for p in module.parameters() if p.dim() == 2)
    assert found.biases == sum(p.numel() for p in module.parameters() if p.dim() == 1)
    assert (found.norms, found.others) == (0, 0)
    assert found.last == module.out.weight.numel()


@every_kind
@pytest.mark.parametrize(("tokens", "dtype"), [(1, torch.float64), (7, torch.bfloat16)])
def test_what_it_computes_and_saves(kind, kv_heads, bias, tokens, dtype):
    config = config_of(kind, kv_heads, bias)
    module, sequences = Attention(config, dtype=dtype), 3
    x = torch.randn(sequences, tokens, config.width, dtype=dtype, requires_grad=True)
    positions = GPT(config, device="meta").to_empty(device="cpu").locate(x)

    def step():
        module(x, positions).sum().backward()

    saved = bytes_saved(step, module, x, *positions.angles)
    assert saved == counts.saved_bytes(config, sequences, tokens, dtype)
    found, matrices = flops_of(step), counts.parameters(config).matrices
    expected = {"forward": 2 * matrices, "backward": 4 * matrices, "recomputed": 0}
    for part in expected:
        if part != "recomputed" or config.recompute == "selective":
            expected[part] += counts.core_flops(config, tokens, part)
        assert getattr(found, part) == sequences * tokens * expected[part], part
