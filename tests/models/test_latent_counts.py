"""What one module of latent attention has, computes and saves is what the counts say."""

from itertools import product

import pytest
import torch

from helpers.measure.flops import flops_of
from helpers.models import latent_counts as counts
from helpers.models.config import GPTConfig
from helpers.models.gpt import GPT
from helpers.models.latent import LatentAttention
from helpers.models.latent_config import Latent
from tests.models.steps import bytes_saved

WIDTHS = {
    "values narrower": Latent(kv_rank=7, nope=4, rope=6, value=3),
    "values as wide": Latent(kv_rank=5, nope=4, rope=2, value=6),
    "queries compressed": Latent(kv_rank=5, query_rank=3, nope=4, rope=2, value=4),
}
DTYPES = (torch.float64, torch.bfloat16)
KINDS = list(product(("sdpa", "explicit"), ("none", "selective"), DTYPES))
every_width = pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)


@every_width
@pytest.mark.parametrize("bias", [True, False])
def test_what_it_has(widths, bias):
    config = GPTConfig(width=12, heads=3, mixer="latent", latent=widths, bias=bias)
    found, parameters = counts.parameters(config), dict(LatentAttention(config).named_parameters())
    norms = sum(p.numel() for name, p in parameters.items() if "norm" in name)
    assert found.matrices == sum(p.numel() for p in parameters.values() if p.dim() == 2)
    assert found.biases == sum(p.numel() for n, p in parameters.items() if n.endswith("bias"))
    assert (found.norms, found.others) == (norms, 0)
    assert found.last == parameters["out.weight"].numel()


@every_width
@pytest.mark.parametrize(("attention", "recompute", "dtype"), KINDS)
@pytest.mark.parametrize(("heads", "tokens"), [(3, 7), (1, 1)])
def test_what_it_computes_and_saves(widths, attention, recompute, dtype, heads, tokens):
    shape = {"width": 12, "heads": heads, "context": 9, "mixer": "latent", "latent": widths}
    config = GPTConfig(attention=attention, recompute=recompute, **shape)
    module, sequences = LatentAttention(config, dtype=dtype), 2
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
