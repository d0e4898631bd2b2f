"""Initial parameters depend only on the seed, the name and the shape, not on the layout."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from helpers.models.gpt import GPT, GPTConfig, build
from helpers.models.initialization import first_value, initialize, log_decays, step_bias
from helpers.models.settings import ExpertSettings, Mamba2Settings
from helpers.models.shape import CHOICES

ROOT = Path(__file__).resolve().parents[2]
CONFIG = GPTConfig(vocab=32, width=32, layers=3)
GPT2_LIKE = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}


def state(config=CONFIG, seed=0, dtype=torch.float64):
    return dict(build(config, seed, dtype).named_parameters())


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("changes", [{}, GPT2_LIKE], ids=["llama", "gpt2"])
def test_other_dtypes_are_the_float64_one_rounded(dtype, changes):
    config = replace(CONFIG, **changes)
    exact = state(config)
    assert_equal(state(config, dtype=dtype), {name: v.to(dtype) for name, v in exact.items()})
    assert all(p.dtype is torch.float64 for p in exact.values())
    unit = first_value("blocks.0.mlp.up.weight", (64, 1), 0, 1)  # a standard deviation of 1
    assert (unit != unit.float()).all()  # drawn in float64, not only stored in it


def test_torchs_generator_is_neither_read_nor_moved():
    torch.manual_seed(1)
    first = state()
    model = GPT(CONFIG, dtype=torch.float64)  # PyTorch's modules use the generator here
    before = torch.get_rng_state()
    initialize(model, 0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert_equal(state(), first)


def test_another_process_gets_the_same():
    """Python's own hash of a name would differ."""
    code = """
import torch
from helpers.models.initialization import first_value
print(first_value("blocks.0.mlp.up.weight", (3, 2), 7, 2).tolist())
"""
    surroundings = os.environ | {"PYTHONHASHSEED": "12345"}
    out = subprocess.check_output([sys.executable, "-c", code], env=surroundings, cwd=ROOT)
    assert json.loads(out) == first_value("blocks.0.mlp.up.weight", (3, 2), 7, 2).tolist()


def test_a_parameter_does_not_depend_on_the_others():
    whole = state()
    # other positions, tying, MLP and vocabulary: the attention is the same
    other = state(replace(CONFIG, vocab=64, tied=False, positions="learned", mlp="gelu"))
    shared = [name for name in whole if "attention" in name]
    assert_equal({n: other[n] for n in shared}, {n: whole[n] for n in shared})
    # more layers change only the matrices that write into the residual stream
    deeper = state(replace(CONFIG, layers=5))
    same = [name for name in whole if not name.endswith(("out.weight", "down.weight"))]
    assert_equal({n: deeper[n] for n in same}, {n: whole[n] for n in same})
    # alone, as on a rank that holds one layer
    name = "blocks.2.mlp.down.weight"
    alone = first_value(name, whole[name].shape, 0, CONFIG.layers)
    assert torch.equal(alone, whole[name])


@pytest.mark.parametrize(
    "changes", [{}, {"tied": False}, GPT2_LIKE], ids=["tied", "untied", "gpt2"]
)
def test_stages_of_a_pipeline_begin_as_the_whole_model(changes):
    config = replace(CONFIG, **changes)
    whole, found = state(config), {}
    for blocks, ends in (
        ([0], {"last": False}),
        ([1], {"first": False, "last": False}),
        ([2], {"first": False}),
    ):
        stage = build(config, 0, torch.float64, blocks=blocks, **ends)
        for name, value in stage.named_parameters():
            plain = stage.plain_name(name)
            assert torch.equal(value, whole[plain]), name
            found.setdefault(plain, []).append(name)
    assert found.keys() == whole.keys()
    shared = {name: names for name, names in found.items() if len(names) > 1}
    tied = {"embedding.weight": ["embedding.weight", "head.weight"]}
    assert shared == (tied if config.tied else {})


def test_every_parameter_and_every_seed_has_its_own():
    one, two = state(seed=0), state(seed=1)
    drawn = [name for name, value in one.items() if value.dim() == 2]
    assert len(drawn) == 1 + 7 * CONFIG.layers
    for name in drawn:
        assert not torch.equal(one[name], two[name])
    for number, name in enumerate(drawn):
        for other in drawn[:number]:
            if one[name].shape == one[other].shape:
                assert not torch.equal(one[name], one[other])


@pytest.mark.parametrize("changes", [{}, GPT2_LIKE], ids=["llama", "gpt2"])
def test_standard_deviations(changes):
    config = GPTConfig(width=128, layers=4, vocab=256, tied=False, **changes)
    for name, value in state(config).items():
        if name.endswith("bias"):
            assert not value.any(), name
        elif value.dim() == 1:
            assert (value == 1).all(), name
        else:
            if name.startswith(("embedding", "positions", "head")):
                std = 0.02
            else:
                std = 1 / math.sqrt(value.shape[1])
                std /= math.sqrt(2 * 4) if name.endswith(("out.weight", "down.weight")) else 1
            # the relative error for n normal numbers is 1/sqrt(2n); allow 6 times that
            off = 6 / math.sqrt(2 * value.numel())
            assert value.std().item() == pytest.approx(std, rel=off), name
            assert abs(value.mean().item()) < 6 * std / math.sqrt(value.numel()), name


def test_what_writes_into_the_residual_stream_is_smaller_in_a_deep_model():
    """The last matrix of every mixer, of the MLP and of the experts, and no other."""
    routed = ExpertSettings(count=3, chosen=2, shared=1)
    for kind, experts, last in (
        *((kind, None, ["down.weight"]) for kind in CHOICES["mixer"]),
        ("attention", routed, ["experts.down", "shared.down.weight"]),
    ):
        changes = {"mixer": kind, "mamba2": Mamba2Settings(head=8, state=4), "experts": experts}
        one, deep = (state(replace(CONFIG, layers=n, **changes)) for n in (1, 8))
        smaller = [name for name in one if not torch.equal(one[name], deep[name])]
        assert smaller == [
            f"blocks.0.{kind}.out.weight",
            *(f"blocks.0.mlp.{name}" for name in last),
        ]
        for name in smaller:
            torch.testing.assert_close(one[name] / 8**0.5, deep[name], rtol=1e-12, atol=0)


def test_the_seed_is_that_of_dropout_too():
    """And every part of `build` reaches the model: its dtype, its device, its stage."""
    model = build(CONFIG, 3, torch.bfloat16, "meta", blocks=[1], last=False)
    assert (model.seed, list(model.blocks), model.first, model.last) == (3, ["1"], True, False)
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.bfloat16, "meta")}


def test_mamba2s_heads_decay_by_1_to_16():
    decays = log_decays((4000,), torch.Generator()).exp()
    assert 1 <= decays.min() < 1.1
    assert 15.9 < decays.max() <= 16
    assert abs(decays.mean() - 8.5) < 0.3  # uniform: the mean of 4000 is within 0.07
    assert not torch.equal(
        log_decays((8,), torch.Generator()), log_decays((8,), torch.Generator().manual_seed(1))
    )


def test_steps_are_log_uniform():
    steps = functional.softplus(step_bias((4000,), torch.Generator()))
    assert 0.001 <= steps.min() < 0.00102
    assert 0.098 < steps.max() <= 0.1 + 1e-12
    assert abs(steps.log().mean() - math.log(0.01)) < 0.1  # the middle of the logarithms
    assert torch.equal(step_bias((5,), torch.Generator()), step_bias((5,), torch.Generator()))
    assert not torch.equal(
        step_bias((5,), torch.Generator()), step_bias((5,), torch.Generator().manual_seed(1))
    )
