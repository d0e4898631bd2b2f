"""Slots of fixed number, and slots that grow: what `test_every_cache` does not ask."""

import pytest
import torch

from helpers.models.caches.cache import CacheFull, Kept
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.gpt import GPTConfig, build, kept_by
from helpers.models.settings import Mamba2Settings
from tests.models.caches.conftest import EXACT, some_tokens


@torch.no_grad()
def test_a_full_cache_is_refused_and_goes_on_as_before(model):
    tokens, cache = some_tokens(2, 9), Preallocated(kept_by(model), 2, 5, torch.float64)
    model(tokens[:, :3], cache=cache)
    with pytest.raises(
        CacheFull, match="would have 6 tokens, but the cache was made for 5"
    ) as full:
        model(tokens[:, 3:6], cache=cache)
    assert isinstance(full.value, RuntimeError)  # like PyTorch's own error without memory
    assert cache.lengths == [3, 3]
    found = model(tokens[:, 3:5], cache=cache)
    torch.testing.assert_close(found, model(tokens[:, :5])[:, 3:], **EXACT)


@torch.no_grad()
def test_a_forward_that_fails_halfway_leaves_recurrent_states_as_before():
    shape = {"width": 16, "mixer": ("mamba2", "mamba"), "mlp": "none", "positions": "none"}
    config = GPTConfig(vocab=19, context=24, mamba2=Mamba2Settings(head=8, state=4), **shape)
    model = build(config, 0, torch.float64).eval()
    tokens, cache = some_tokens(2, 9), Growing(kept_by(model), 2, torch.float64)
    model(tokens[:, :3], cache=cache)
    handle = model.blocks["1"].register_forward_pre_hook(lambda *_: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            model(tokens[:, 4:8], cache=cache)
    handle.remove()
    found = model(tokens[:, 3:5], cache=cache)
    torch.testing.assert_close(found, model(tokens[:, :5])[:, 3:], **EXACT)


def test_states_are_read_as_written_and_not_rewound():
    kept = {4: Kept(per_sequence=((2, 3), (5,)))}
    assert kept[4].bytes_per_sequence(torch.bfloat16) == 22
    cache = Growing(kept, 2)
    assert [t.shape for t in cache.blocks[4].read()] == [(2, 2, 3), (2, 5)]
    cache.begin(1)
    cache.blocks[4].write(torch.ones(2, 2, 3), torch.ones(2, 5))
    cache.begin(0)  # the step before has not ended, so what it wrote is dropped
    cache.end()
    assert not any(t.any() for t in cache.blocks[4].read())
    cache.begin(1)
    cache.blocks[4].write(torch.ones(2, 2, 3), torch.full((2, 5), 2.0))
    cache.end()
    assert [t.mean().item() for t in cache.blocks[4].read()] == [1.0, 2.0]
    with pytest.raises(ValueError, match="cannot be rewound"):
        cache.rewind([0, 1])
    cache.rewind([1, 1])
    assert cache.bytes == 2 * 11 * 4
