"""Bamba agrees with transformers', its cache is both kinds, and Bamba-9B has its published size."""

from dataclasses import replace

import pytest
import torch

from helpers.models.bamba import bamba
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.config import GPTConfig
from helpers.models.gpt import GPT, build, kept_by
from helpers.models.ssm_settings import Mamba2Settings
from tests.models import ssm_checks
from tests.models.ssm_peers import bamba_of

SIZES = {"vocab": 31, "context": 37, "width": 32, "hidden": 24, "heads": 4, "kv_heads": 2}
SMALL = bamba(3, [1], **SIZES, mamba2=Mamba2Settings(state=6, head=8, chunk=16))
KINDS = {
    "one of three": SMALL,
    "groups, tied, one key": replace(
        SMALL, tied=True, kv_heads=1, mamba2=replace(SMALL.mamba2, groups=2)
    ),
    "attention first and last": bamba(
        3, [0, 2], **SIZES, mamba2=Mamba2Settings(state=3, head=16), rotary_base=100.0
    ),
}
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)


@every_kind
@pytest.mark.parametrize("dtype", ssm_checks.NEAR, ids=str)
def test_logits_are_those_of_transformers(config, dtype):
    ssm_checks.check_logits(bamba_of, config, dtype)


def test_gradients_are_those_of_transformers():
    ssm_checks.check_gradients(bamba_of, SMALL)


@every_kind
def test_greedy_tokens_are_those_of_transformers(config):
    ssm_checks.check_greedy_tokens(bamba_of, config)


def test_any_split_gives_the_same():
    ssm_checks.check_splits(SMALL)


def test_a_ragged_batch_gives_each_sequence_its_own():
    ssm_checks.check_ragged(SMALL)


@torch.no_grad()
def test_its_cache_has_states_and_keys():
    model = build(SMALL)
    cache = Growing(kept_by(model), 2)
    state = (3 * (64 + 6 + 6) + 8 * 8 * 6) * 4  # the inputs of convolutions, and 8 heads
    assert cache.bytes == 2 * 2 * state
    x = ssm_checks.some_tokens(SMALL, 2, 9)
    model(x, cache=cache)
    keys = 2 * 2 * 8 * 4  # keys and values of 2 heads of 8
    assert cache.bytes == 2 * (2 * state + 9 * keys)
    with pytest.raises(ValueError, match="state cannot be rewound"):
        cache.rewind([3, 3])
    full = Preallocated(kept_by(model), 2, 37)
    torch.testing.assert_close(model(x, cache=full), model(x))


def test_bamba_9b_has_its_published_size():
    """9.78 billion parameters: the model card's table. 3 of 32 blocks have attention."""
    config = bamba()
    assert [n for n, kind in enumerate(config.mixers) if kind == "attention"] == [9, 18, 27]
    assert config.mixers.count("mamba2") == 29
    model = GPT(replace(config, context=1), torch.bfloat16, "meta")
    total = sum(p.numel() for p in model.parameters())
    assert round(total / 1e9, 2) == 9.78
    assert config.rotary_width == 64  # of 128
    assert config.mamba2.heads(4096) == 128
    assert (config.context, config.vocab, config.key_heads) == (4096, 128_256, 8)


def test_errors_and_changes():
    with pytest.raises(ValueError, match="no block has the number 9: 4 blocks have 0 to 3"):
        bamba(4)
    with pytest.raises(ValueError, match="no block has the number 4: 4 blocks have 0 to 3"):
        bamba(4, [1, 4])
    with pytest.raises(ValueError, match="mamba2 heads of 64 channels"):
        bamba(1, [], width=16, heads=2, kv_heads=1)
    changed = bamba(2, [0], rotary_share=1.0, tied=True)
    assert isinstance(changed, GPTConfig)
    assert (changed.rotary_width, changed.tied, changed.layers) == (128, True, 2)
