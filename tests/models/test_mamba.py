"""Mamba agrees with transformers', token by token and at once, and keeps a state of fixed size."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from helpers.models.attention import Positions
from helpers.models.caches.preallocated import Growing
from helpers.models.config import GPTConfig
from helpers.models.gpt import build, kept_by, loss_sum
from helpers.models.mamba import Mamba, wide
from helpers.models.ssm_settings import MambaSettings
from tests.models import ssm_checks
from tests.models.ssm_peers import mamba_of

SHAPE = {"vocab": 31, "context": 37, "width": 24, "layers": 2, "positions": "none", "mlp": "none"}
MAMBA = GPTConfig(**SHAPE, mixer="mamba", mamba=MambaSettings(state=5))
KINDS = {
    "tied": MAMBA,
    "untied, biases": replace(MAMBA, tied=False, bias=True),
    "sizes": replace(
        MAMBA, layers=1, mamba=MambaSettings(state=1, expand=3, convolution=2, rank=4)
    ),
}
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)


@every_kind
@pytest.mark.parametrize("dtype", ssm_checks.NEAR, ids=str)
def test_logits_are_those_of_transformers(config, dtype):
    ssm_checks.check_logits(mamba_of, config, dtype)


def test_logits_of_one_token_are_those_of_transformers():
    ssm_checks.check_logits(mamba_of, MAMBA, torch.float64, tokens=1)


@every_kind
def test_gradients_are_those_of_transformers(config):
    ssm_checks.check_gradients(mamba_of, config)


def test_greedy_tokens_are_those_of_transformers():
    ssm_checks.check_greedy_tokens(mamba_of, MAMBA)


@every_kind
def test_any_split_gives_the_same(config):
    ssm_checks.check_splits(config)


def test_a_ragged_batch_gives_each_sequence_its_own():
    ssm_checks.check_ragged(MAMBA)


@torch.no_grad()
def test_a_token_after_others_needs_no_scan():
    """A scan over one token would compute the same, and make buffers for a sequence."""
    model, scans = build(MAMBA), []
    for block in model.blocks.values():
        over_tokens = block.mamba.over_tokens
        block.mamba.over_tokens = lambda *given, f=over_tokens: (scans.append(1), f(*given))[1]
    cache = Growing(kept_by(model), 3)
    for tokens, expected in ((5, 2), (1, 2), (2, 4)):
        model(ssm_checks.some_tokens(MAMBA, tokens=tokens), cache=cache)
        assert len(scans) == expected


def test_no_token_sees_the_future():
    ssm_checks.check_causality(MAMBA)


def test_every_dtype_runs():
    ssm_checks.check_dtypes(MAMBA)


@torch.no_grad()
def test_a_block_is_the_papers_formulas():
    """One sequence, token by token, written from section 3.2 and algorithm 2."""
    config = replace(MAMBA, mamba=MambaSettings(state=3, convolution=3), width=4, heads=1)
    block = ssm_checks.randomised(config).blocks["0"].mamba
    x = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = block(x, Positions(places=torch.arange(5), angles=None, key=None))[0]
    inputs, gates = block.inner(x[0]), block.gate(x[0])
    h, A = torch.zeros(8, 3, dtype=torch.float64), -block.A_log.exp()
    for t in range(5):
        seen = [inputs[t - 2 + j] if t - 2 + j >= 0 else torch.zeros(8) for j in range(3)]
        u = block.convolution.bias + sum(
            block.convolution.weight[:, j] * one for j, one in enumerate(seen)
        )
        u = functional.silu(u)
        step = functional.softplus(block.delta(block.rank(u)))
        h = (step[:, None] * A).exp() * h + torch.outer(step * u, block.B(u))
        y = h @ block.C(u) + block.skip * u
        expected = block.out(y * functional.silu(gates[t]))
        torch.testing.assert_close(found[t], expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_state_does_not_grow():
    model = build(MAMBA)
    cache = Growing(kept_by(model), 3)
    # 2 blocks of 3 inputs and 5 numbers of state for each of 48 channels
    assert cache.bytes == 3 * 2 * (3 + 5) * 48 * 4
    x = ssm_checks.some_tokens(MAMBA)
    for part in x.split(10, dim=1):
        model(part, cache=cache)
        assert cache.bytes == 3 * 2 * (3 + 5) * 48 * 4
    assert Mamba.kept(MAMBA).bytes_per_token(torch.float32) == 0
    assert Mamba.kept(MAMBA).bytes_per_sequence(torch.bfloat16) == (3 + 5) * 48 * 2


@torch.no_grad()
def test_a_cache_in_another_dtype():
    """A cache in bf16 keeps rounded states, of a model in float32."""
    model, x = ssm_checks.randomised(MAMBA, torch.float32), ssm_checks.some_tokens(MAMBA, 2, 8)
    cache = Growing(kept_by(model), 2, torch.bfloat16)
    parts = [model(part, cache=cache) for part in x.split([5, 1, 2], 1)]
    found, expected = torch.cat(parts, 1), model(x)
    assert found.dtype is torch.float32
    assert 0 < (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_changes_no_bit(recompute):
    x, y = ssm_checks.some_tokens(MAMBA), ssm_checks.some_tokens(MAMBA, seed=1)
    results = []
    for config in (MAMBA, replace(MAMBA, recompute=recompute)):
        model = ssm_checks.randomised(config)
        loss, _ = loss_sum(model(x), y)
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_first_values():
    model = build(MAMBA, seed=3, dtype=torch.float64)
    block = model.blocks["1"].mamba
    torch.testing.assert_close(block.A_log.exp()[7], torch.arange(1.0, 6, dtype=torch.float64))
    steps = functional.softplus(block.delta.bias)
    assert ((steps >= 0.001) & (steps <= 0.1 + 1e-12)).all()
    assert steps.std() > 0.01
    assert (block.skip == 1).all()
    assert not block.convolution.bias.any()
    # what writes into the residual stream is smaller with more layers
    deeper = build(replace(MAMBA, layers=8), seed=3, dtype=torch.float64).blocks["1"].mamba
    torch.testing.assert_close(deeper.out.weight * 2, block.out.weight)
    assert torch.equal(deeper.inner.weight, block.inner.weight)


def test_wide():
    assert wide(torch.ones(1, dtype=torch.float64)).dtype is torch.float64
    assert wide(torch.ones(1, dtype=torch.bfloat16)).dtype is torch.float32
