"""Mamba-2 agrees with transformers', token by token and at once; heads, groups and chunks."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from helpers.models.attention import Positions
from helpers.models.caches.preallocated import Growing
from helpers.models.config import GPTConfig
from helpers.models.gpt import build, kept_by, loss_sum
from helpers.models.mamba2 import GatedNorm, Mamba2
from helpers.models.ssm_settings import Mamba2Settings
from tests.models import ssm_checks
from tests.models.ssm_peers import mamba2_of

SHAPE = {"vocab": 31, "context": 37, "width": 24, "layers": 2, "positions": "none", "mlp": "none"}
MAMBA2 = GPTConfig(**SHAPE, mixer="mamba2", mamba2=Mamba2Settings(state=6, head=8, chunk=16))
KINDS = {
    "one group": MAMBA2,
    "groups, untied, biases": replace(
        MAMBA2, tied=False, bias=True, mamba2=Mamba2Settings(state=6, head=8, groups=3, chunk=5)
    ),
    "sizes": replace(
        MAMBA2,
        layers=1,
        mamba2=Mamba2Settings(state=1, head=2, expand=1, groups=6, convolution=2),
    ),
}
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)


@every_kind
@pytest.mark.parametrize("dtype", ssm_checks.NEAR, ids=str)
def test_logits_are_those_of_transformers(config, dtype):
    ssm_checks.check_logits(mamba2_of, config, dtype)


def test_logits_of_one_token_are_those_of_transformers():
    ssm_checks.check_logits(mamba2_of, MAMBA2, torch.float64, tokens=1)


@every_kind
def test_gradients_are_those_of_transformers(config):
    ssm_checks.check_gradients(mamba2_of, config)


def test_greedy_tokens_are_those_of_transformers():
    ssm_checks.check_greedy_tokens(mamba2_of, MAMBA2)


@every_kind
def test_any_split_gives_the_same(config):
    ssm_checks.check_splits(config)


def test_a_ragged_batch_gives_each_sequence_its_own():
    ssm_checks.check_ragged(MAMBA2)


def test_no_token_sees_the_future():
    ssm_checks.check_causality(MAMBA2)


def test_every_dtype_runs():
    ssm_checks.check_dtypes(MAMBA2)


@torch.no_grad()
def test_a_block_is_the_papers_formulas():
    """One sequence, head by head and token by token."""
    sizes = Mamba2Settings(state=3, head=2, groups=2, convolution=2)
    config = replace(MAMBA2, mamba2=sizes, width=4, heads=1)
    block = ssm_checks.randomised(config).blocks["0"].mamba2
    x = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = block(x, Positions(places=torch.arange(5), angles=None, key=None))[0]

    def seen(linear, convolution, t):
        now, past = linear(x[0, t]), linear(x[0, t - 1]) if t else 0
        weight = convolution.weight
        return functional.silu(convolution.bias + weight[:, 1] * now + weight[:, 0] * past)

    h = torch.zeros(4, 2, 3, dtype=torch.float64)  # 4 heads of 2 channels
    for t in range(5):
        u = seen(block.inner, block.convolution, t)
        B, C = seen(block.B, block.convolution_B, t), seen(block.C, block.convolution_C, t)
        steps, y = functional.softplus(block.delta(x[0, t])), []
        for head in range(4):
            mine, group = slice(2 * head, 2 * head + 2), slice(head // 2 * 3, head // 2 * 3 + 3)
            decay = (-steps[head] * block.A_log[head].exp()).exp()
            h[head] = decay * h[head] + steps[head] * torch.outer(u[mine], B[group])
            y.append(h[head] @ C[group] + block.skip[head] * u[mine])
        gated = torch.cat(y) * functional.silu(block.gate(x[0, t]))
        for group in range(2):  # the norm of a group's 4 channels
            mine = slice(4 * group, 4 * group + 4)
            gated[mine] /= (gated[mine].square().mean() + config.norm_eps).sqrt()
        expected = block.out(gated * block.gated_norm.weight)
        torch.testing.assert_close(found[t], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_the_gated_norm_is_over_each_group(groups):
    norm = GatedNorm(12, groups, 1e-3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    weight, y, gate = (torch.randn(s, generator=generator, dtype=torch.float64) for s in
                       ((12,), (2, 3, 12), (2, 3, 12)))  # fmt: skip
    norm.load_state_dict({"weight": weight})
    gated = (y * functional.silu(gate)).unflatten(-1, (groups, -1))
    expected = functional.rms_norm(gated, (12 // groups,), eps=1e-3).flatten(-2) * weight
    torch.testing.assert_close(norm(y, gate), expected, rtol=0, atol=1e-13)
    assert norm.bfloat16()(y.bfloat16(), gate.bfloat16()).dtype is torch.bfloat16


def test_the_chunk_changes_no_result():
    x = ssm_checks.some_tokens(MAMBA2)
    results = []
    for chunk in (1, 7, 37, 64):
        config = replace(MAMBA2, mamba2=replace(MAMBA2.mamba2, chunk=chunk))
        results.append(ssm_checks.randomised(config)(x))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_state_does_not_grow():
    model = build(MAMBA2)
    cache = Growing(kept_by(model), 3)
    # 2 blocks: 3 inputs of 48 + 6 + 6 channels, and 6 heads of 8 x 6 numbers
    expected = 3 * 2 * (3 * 60 + 6 * 8 * 6) * 4
    assert cache.bytes == expected
    for part in ssm_checks.some_tokens(MAMBA2).split(10, dim=1):
        model(part, cache=cache)
        assert cache.bytes == expected
    assert Mamba2.kept(MAMBA2).bytes_per_token(torch.float32) == 0


@torch.no_grad()
def test_a_token_after_others_needs_no_scan():
    """And a scan has the chunks of the settings, which change the speed alone."""
    model, chunks = build(MAMBA2), []

    def keep(plain):
        return lambda *given, chunk: (chunks.append(chunk), plain(*given, chunk=chunk))[1]

    for block in model.blocks.values():
        block.mamba2.over_tokens = keep(block.mamba2.over_tokens)
    cache = Growing(kept_by(model), 3)
    for tokens, expected in ((5, 2), (1, 2), (2, 4)):
        model(ssm_checks.some_tokens(MAMBA2, tokens=tokens), cache=cache)
        assert len(chunks) == expected
    assert chunks == [16] * 4


@torch.no_grad()
def test_a_cache_in_another_dtype():
    """A cache in bf16 keeps rounded states, of a model in float32."""
    model, x = ssm_checks.randomised(MAMBA2, torch.float32), ssm_checks.some_tokens(MAMBA2, 2, 8)
    cache = Growing(kept_by(model), 2, torch.bfloat16)
    parts = [model(part, cache=cache) for part in x.split([5, 1, 2], 1)]
    found, expected = torch.cat(parts, 1), model(x)
    assert found.dtype is torch.float32
    assert 0 < (found - expected).norm() < 0.05 * expected.norm()


def test_recomputing_changes_no_bit():
    x, y = ssm_checks.some_tokens(MAMBA2), ssm_checks.some_tokens(MAMBA2, seed=1)
    results = []
    for recompute in ("none", "selective", "full"):
        model = ssm_checks.randomised(replace(MAMBA2, recompute=recompute))
        loss, _ = loss_sum(model(x), y)
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters())])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_first_values():
    model = build(MAMBA2, seed=3, dtype=torch.float64)
    block, other = (model.blocks[n].mamba2 for n in "01")
    decays, steps = block.A_log.exp(), functional.softplus(block.delta.bias)
    assert ((decays >= 1) & (decays <= 16)).all()
    assert ((steps >= 0.001) & (steps <= 0.1 + 1e-12)).all()
    assert not torch.equal(block.A_log, other.A_log)
    assert (block.skip == 1).all()
    assert (block.gated_norm.weight == 1).all()
    deeper = build(replace(MAMBA2, layers=8), seed=3, dtype=torch.float64).blocks["1"].mamba2
    torch.testing.assert_close(deeper.out.weight * 2, other.out.weight)


def test_heads_must_divide():
    with pytest.raises(ValueError, match="heads of 64 channels do not divide 48 channels"):
        GPTConfig(**SHAPE, mixer="mamba2")
    GPTConfig(**SHAPE, mixer="attention", heads=4)  # who does not use them need not divide them
