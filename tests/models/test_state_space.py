"""Mamba, Mamba-2 and Bamba agree with transformers', in any split, with states of fixed size."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from helpers.models.attention import Positions
from helpers.models.bamba import bamba
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.gpt import build, kept_by
from helpers.models.mamba2 import GatedNorm
from helpers.models.settings import Mamba2Settings, MambaSettings
from tests.models.steps import some_tokens
from tests.models.test_every_model import BAMBA, MAMBA, MAMBA2
from tests.models.test_every_model import made as randomised

both = pytest.mark.parametrize("config", [MAMBA, MAMBA2], ids=["mamba", "mamba2"])


@torch.no_grad()
def test_a_mamba_block_is_the_papers_formulas():
    """One sequence, token by token, written from section 3.2 and algorithm 2."""
    config = replace(MAMBA, mamba=MambaSettings(state=3, convolution=3), width=4, heads=1)
    block = randomised(config).blocks["0"].mamba
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
def test_a_mamba2_block_is_the_papers_formulas():
    """One sequence, head by head and token by token."""
    sizes = Mamba2Settings(state=3, head=2, groups=2, convolution=2)
    config = replace(MAMBA2, mamba2=sizes, width=4, heads=1)
    block = randomised(config).blocks["0"].mamba2
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


def test_the_chunk_changes_no_result_and_the_gated_norm_keeps_its_dtype():
    x, results = some_tokens(MAMBA2), []
    for chunk in (1, 7, 37, 64):
        config = replace(MAMBA2, mamba2=replace(MAMBA2.mamba2, chunk=chunk))
        results.append(randomised(config)(x))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=1e-12)
    norm, y = GatedNorm(12, 2, 1e-3, dtype=torch.bfloat16), torch.ones(2, 3, 12).bfloat16()
    assert norm(y, y).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("config", "fixed", "a_token"),
    [
        (MAMBA, 2 * (3 + 5) * 48, 0),  # 2 blocks: 3 inputs and 5 numbers of state of 48 channels
        (MAMBA2, 2 * (3 * 60 + 6 * 8 * 6), 0),  # inputs of 48 + 6 + 6 channels, 6 heads
        (BAMBA, 2 * (3 * (64 + 6 + 6) + 8 * 8 * 6), 2 * 2 * 8),  # and keys and values of one block
    ],
    ids=["mamba", "mamba2", "bamba"],
)
@torch.no_grad()
def test_the_state_does_not_grow(config, fixed, a_token):
    model, x = build(config), some_tokens(config, 3)
    cache = Growing(kept_by(model), 3)
    assert cache.bytes == 3 * fixed * 4
    for part in x.split(10, dim=1):
        model(part, cache=cache)
        assert cache.bytes == 3 * (fixed + cache.lengths[0] * a_token) * 4
    with pytest.raises(ValueError, match="state cannot be rewound"):
        cache.rewind([3, 3, 3])
    full = Preallocated(kept_by(model), 3, 37)
    torch.testing.assert_close(model(x, cache=full), model(x))


@both
@torch.no_grad()
def test_a_token_after_others_needs_no_scan(config):
    """And a scan of Mamba-2 has the chunks of the settings, which change the speed alone."""
    model, scans = build(config), []
    for block in model.blocks.values():
        mixer = getattr(block, block.kind)

        def over_tokens(*given, plain=mixer.over_tokens, **options):
            scans.append(options)
            return plain(*given, **options)

        mixer.over_tokens = over_tokens
    cache = Growing(kept_by(model), 3)
    for tokens, expected in ((5, 2), (1, 2), (2, 4)):
        model(some_tokens(config, tokens=tokens), cache=cache)
        assert len(scans) == expected
    assert scans == [{"chunk": 16} if config is MAMBA2 else {}] * 4


@both
def test_first_values(config):
    """`test_initialization` has those of decays, steps and matrices."""
    block = getattr(build(config, dtype=torch.float64).blocks["0"], config.mixer)
    if config is MAMBA:
        every = torch.arange(1.0, 6, dtype=torch.float64).expand(48, 5)
        torch.testing.assert_close(block.A_log.exp(), every)
    else:
        assert (block.gated_norm.weight == 1).all()
    assert (block.skip == 1).all()
    assert not block.convolution.bias.any()


def test_bamba_9b_and_its_changes():
    """The model card's table: 3 of 32 blocks have attention."""
    config = bamba()
    assert [n for n, kind in enumerate(config.mixers) if kind == "attention"] == [9, 18, 27]
    assert config.mixers.count("mamba2") == 29
    assert (config.rotary_width, config.mamba2.heads(4096)) == (64, 128)
    assert (config.context, config.vocab, config.key_heads) == (4096, 128_256, 8)
    for attention, wrong in (((9, 18, 27), 9), ([1, 4], 4)):
        with pytest.raises(ValueError, match=f"no block has the number {wrong}: 4 blocks have 0"):
            bamba(4, attention)
    changed = bamba(2, [0], rotary_share=1.0, tied=True)
    assert (changed.rotary_width, changed.tied, changed.layers) == (128, True, 2)
