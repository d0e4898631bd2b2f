"""What Mamba-2 has, computes and saves is what its counts say."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.measure.flops import flops_of
from helpers.models import mamba2_counts, parameter_counts
from helpers.models.activation_counts import activation_bytes
from helpers.models.attention import Positions
from helpers.models.bamba import bamba
from helpers.models.config import GPTConfig
from helpers.models.counts import flops_per_token
from helpers.models.mamba2 import Mamba2
from helpers.models.ssm_settings import Mamba2Settings
from tests.models.steps import bytes_saved, step_of

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SIZES = {
    "one group": Mamba2Settings(state=5, head=8, chunk=3),
    "one of each": Mamba2Settings(state=1, head=12, expand=1, convolution=1, chunk=20),
    "groups": Mamba2Settings(state=3, head=2, expand=3, convolution=2, groups=6, chunk=4),
}
SMALL = GPTConfig(width=12, heads=3, context=9, mixer="mamba2", mamba2=SIZES["one group"])
every_size = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)


@every_size
@pytest.mark.parametrize("bias", [True, False])
def test_what_it_has(sizes, bias):
    config = replace(SMALL, mamba2=sizes, bias=bias)
    found, parameters = mamba2_counts.parameters(config), dict(Mamba2(config).named_parameters())
    biases = sum(p.numel() for name, p in parameters.items() if name.endswith("bias"))
    linear = ("inner", "gate", "B", "C", "delta", "out")
    matrices = sum(parameters[f"{name}.weight"].numel() for name in linear)
    norms = parameters["gated_norm.weight"].numel()
    assert (found.matrices, found.biases, found.norms) == (matrices, biases, norms)
    assert found.last == parameters["out.weight"].numel()
    assert found.others == sum(p.numel() for p in parameters.values()) - matrices - biases - norms


@every_size
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 7])
def test_what_it_computes_and_saves(sizes, dtype, tokens):
    config, sequences = replace(SMALL, mamba2=sizes), 2
    module = Mamba2(config, dtype=dtype)
    module.load_state_dict({n: torch.full_like(p, 0.1) for n, p in module.named_parameters()})
    x = torch.randn(sequences, tokens, 12, dtype=dtype, requires_grad=True)
    places = Positions(places=torch.arange(tokens), angles=None, key=None)

    def step():
        module(x, places).sum().backward()

    saved = bytes_saved(step, module, x)
    assert saved == mamba2_counts.saved_bytes(config, sequences, tokens, dtype)
    found = flops_of(step)
    matrices = mamba2_counts.parameters(config).matrices
    for part, times in (("forward", 2), ("backward", 4)):
        a_token = times * matrices + mamba2_counts.core_flops(config, tokens, part)
        assert getattr(found, part) == sequences * tokens * a_token, part


@given(
    mixer=st.lists(st.sampled_from(["mamba", "mamba2", "attention"]), min_size=1, max_size=3),
    mlp=st.sampled_from(["none", "gelu", "swiglu"]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    dropout=st.sampled_from([0.0, 0.2]),
    tokens=st.integers(1, 9),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_whole_models(mixer, mlp, recompute, dropout, tokens):
    """Hybrids too; the last matrix is not recomputed."""
    changes = {"mixer": tuple(mixer), "mlp": mlp, "recompute": recompute, "dropout": dropout}
    config = replace(SMALL, layers=len(mixer), positions="none", **changes)
    model, step = step_of(config, 2, tokens)
    assert bytes_saved(step, model) == activation_bytes(config, 2, tokens)
    found = flops_of(step)
    for part in ("forward", "backward", "recomputed"):
        expected = 2 * tokens * flops_per_token(config, tokens, part=part)
        assert getattr(found, part) == expected, part
    assert parameter_counts.parameters(config).total == sum(p.numel() for p in model.parameters())


def test_flops_per_token_are_a_fraction_if_the_last_chunk_is_short():
    found = mamba2_counts.core_flops(SMALL, 7, "forward")
    # chunks of 3, 3 and 1 tokens: 19 products of pairs, one group of 5, 24 channels
    assert found == Fraction(2 * (19 * 5 + 19 * 24 + 2 * 7 * 24 * 5), 7)
    assert isinstance(mamba2_counts.core_flops(SMALL, 9, "forward"), int)
    assert mamba2_counts.core_flops(SMALL, 9, "recomputed") == 0


def test_the_published_sizes():
    """Mamba-2 130M of the authors, vocabulary padded to 50 288; Bamba-9B's model card."""
    shape = {"vocab": 50_288, "width": 768, "layers": 24, "context": 2048, "heads": 1}
    config = GPTConfig(**shape, mixer="mamba2", mlp="none", positions="none")
    assert parameter_counts.parameters(config).total == 128_989_632
    assert round(parameter_counts.parameters(bamba()).total / 1e9, 2) == 9.78
