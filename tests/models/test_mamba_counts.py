"""What Mamba has, computes and saves is what its counts say."""

from dataclasses import replace

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from helpers.measure.flops import flops_of
from helpers.models import mamba_counts, parameter_counts
from helpers.models.attention import Positions
from helpers.models.config import GPTConfig
from helpers.models.mamba import Mamba
from helpers.models.scan import fused
from helpers.models.ssm_settings import MambaSettings
from tests.models.steps import bytes_saved

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SMALL = GPTConfig(width=12, heads=3, context=9, mixer="mamba", mamba=MambaSettings(state=5))
SIZES = {
    "usual": MambaSettings(state=5),
    "one of each": MambaSettings(state=1, expand=1, convolution=1, rank=1),
    "others": MambaSettings(state=3, expand=3, convolution=2, rank=4),
}
every_size = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)


@every_size
@pytest.mark.parametrize("bias", [True, False])
def test_what_it_has(sizes, bias):
    config = replace(SMALL, mamba=sizes, bias=bias)
    found, parameters = mamba_counts.parameters(config), dict(Mamba(config).named_parameters())
    biases = sum(p.numel() for name, p in parameters.items() if name.endswith("bias"))
    linear = ("inner", "gate", "rank", "B", "C", "delta", "out")
    matrices = sum(parameters[f"{name}.weight"].numel() for name in linear)
    assert (found.matrices, found.biases, found.norms) == (matrices, biases, 0)
    assert found.last == parameters["out.weight"].numel()
    assert found.others == sum(p.numel() for p in parameters.values()) - matrices - biases


@every_size
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 7])
def test_what_it_computes_and_saves(sizes, dtype, tokens):
    config, sequences = replace(SMALL, mamba=sizes), 2
    module = Mamba(config, dtype=dtype)
    torch.nn.init.normal_(module.A_log, std=0.1)
    module.load_state_dict({n: torch.full_like(p, 0.1) for n, p in module.named_parameters()})
    x = torch.randn(sequences, tokens, 12, dtype=dtype, requires_grad=True)
    places = Positions(places=torch.arange(tokens), angles=None, key=None)

    def step():
        module(x, places).sum().backward()

    saved = bytes_saved(step, module, x)
    assert saved == mamba_counts.saved_bytes(config, sequences, tokens, dtype)
    found = flops_of(step)
    matrices = mamba_counts.parameters(config).matrices
    for part, times in (("forward", 2), ("backward", 4)):
        a_token = times * matrices + mamba_counts.core_flops(config, tokens, part)
        assert getattr(found, part) == sequences * tokens * a_token, part
    assert mamba_counts.core_flops(config, tokens, "recomputed") == 0


def test_states_of_several_pieces(monkeypatch):
    """The scan keeps one state for each piece, and the last one."""
    monkeypatch.setattr(fused, "BYTES", 2 * 24 * 5 * 4 * 3)  # 3 tokens of 2 sequences
    monkeypatch.setattr(fused, "LEAST", 1)
    assert mamba_counts.pieces_of(2, 7, 24 * 5, 4) == 3
    module = Mamba(SMALL, dtype=torch.float32)
    module.load_state_dict({n: torch.full_like(p, 0.1) for n, p in module.named_parameters()})
    x = torch.randn(2, 7, 12, requires_grad=True)
    places = Positions(places=torch.arange(7), angles=None, key=None)
    saved = bytes_saved(lambda: module(x, places).sum().backward(), module, x)
    assert saved == mamba_counts.saved_bytes(SMALL, 2, 7, torch.float32)


def test_a_batch_without_sequences_or_with_states_that_fill_no_piece():
    assert mamba_counts.pieces_of(0, 9, 80, 4) == 1
    assert mamba_counts.pieces_of(1, 9 * fused.LEAST - 1, 10**9, 4) == 9


@pytest.mark.parametrize(("width", "layers", "total"), [(768, 24, 129_135_360)])
def test_the_parameters_of_mamba_130m(width, layers, total):
    """Gu and Dao 2023, table 12; the released model, whose vocabulary is padded to 50 280."""
    shape = {"vocab": 50_280, "width": width, "layers": layers, "context": 2048, "heads": 1}
    config = GPTConfig(**shape, mixer="mamba", mlp="none", positions="none")
    assert parameter_counts.parameters(config).total == total
    with torch.device("meta"):
        theirs = MambaForCausalLM(
            MambaConfig(vocab_size=50_280, hidden_size=width, num_hidden_layers=layers)
        )
    assert sum(p.numel() for p in theirs.parameters()) == total
