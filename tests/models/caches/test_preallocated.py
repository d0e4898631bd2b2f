"""Logits with a cache are those without it: for every split of a prompt, and ragged batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.models.caches.cache import CacheFull
from helpers.models.caches.kept import Kept
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.config import GPTConfig
from helpers.models.gpt import build, kept_by
from helpers.models.ssm_settings import Mamba2Settings

KINDS = {
    "preallocated": lambda model, b: Preallocated(kept_by(model), b, 24, torch.float64),
    "growing": lambda model, b: Growing(kept_by(model), b, torch.float64),
}
every_cache = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def some_tokens(sequences, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 19, (sequences, tokens), generator=generator)


@every_cache
@pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 3, 1], [9], [1, 8]], ids=str)
@torch.no_grad()
def test_any_split_of_a_prompt_gives_the_same_logits(model, make, chunks):
    tokens, cache, found = some_tokens(3, 9), make(model, 3), []
    for part in tokens.split(chunks, 1):
        found.append(model(part, cache=cache))
    assert cache.lengths == [9, 9, 9]
    torch.testing.assert_close(torch.cat(found, 1), model(tokens), rtol=0, atol=1e-12)


@every_cache
@torch.no_grad()
def test_a_ragged_batch_gives_each_sequence_its_own_logits(model, make):
    rows = [some_tokens(1, 14, seed)[0] for seed in range(4)]
    cache, found = make(model, 4), [[], [], [], []]
    for counts in ([3, 5, 0, 1], [1, 1, 1, 1], [2, 0, 6, 3], [4, 4, 4, 4], [0, 1, 0, 0]):
        x = torch.full((4, max(counts)), 7)  # the padding is a token like any other
        for row, count in enumerate(counts):
            start = cache.lengths[row]
            x[row, :count] = rows[row][start : start + count]
        logits = model(x, cache=cache, counts=counts)
        assert logits.isfinite().all()
        for row, count in enumerate(counts):
            found[row].append(logits[row, :count])
    assert cache.lengths == [10, 11, 11, 9]
    for row, length in enumerate(cache.lengths):
        expected = model(rows[row][None, :length])[0]
        torch.testing.assert_close(torch.cat(found[row]), expected, rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), max_size=5))
@torch.no_grad()
def test_any_ragged_steps(steps):
    config = GPTConfig(vocab=19, context=24, width=8, heads=2, layers=1)
    model = build(config, 3, torch.float64)
    rows, cache = some_tokens(2, 24), Preallocated(kept_by(model), 2, 24, torch.float64)
    for counts in steps:
        x = torch.zeros(2, 4, dtype=torch.int64)
        for row, count in enumerate(counts):
            start = cache.lengths[row]
            x[row, :count] = rows[row, start : start + count]
        logits = model(x, cache=cache, counts=counts)
        for row, count in enumerate(counts):
            length = cache.lengths[row]
            expected = model(rows[row : row + 1, :length])[0, length - count :]
            torch.testing.assert_close(logits[row, :count], expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_forgotten_tokens_are_as_never_read(model):
    tokens, cache = some_tokens(2, 9), KINDS["preallocated"](model, 2)
    model(tokens, cache=cache)
    cache.end()  # nothing was added since the forward's own end
    assert list(cache.lengths) == [9, 9]
    cache.rewind([4, 6])
    x = torch.stack([tokens[0, 4:6], tokens[1, 6:8]])
    found = model(x, cache=cache)
    for row, start in enumerate([4, 6]):
        expected = model(tokens[row : row + 1, : start + 2])[0, start:]
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-12)
    for wrong, message in (([7, 8], "6 tokens to 7"), ([2, 9], "8 tokens to 9"), ([-1, 8], "-1")):
        with pytest.raises(ValueError, match=f"cannot rewind a sequence of .*{message}"):
            cache.rewind(wrong)
    assert cache.lengths == [6, 8]


@pytest.mark.parametrize("kind", [Preallocated, Growing])
@torch.no_grad()
def test_a_narrow_cache_keeps_narrow_numbers(model, kind):
    """Of steps in which all sequences get the same number of tokens, and of ragged ones."""
    sizes = (2, 24) if kind is Preallocated else (2,)
    cache, tokens = kind(kept_by(model), *sizes, torch.bfloat16), some_tokens(2, 9)
    expected = model(tokens)
    found = model(tokens[:, :5], cache=cache)
    ragged = model(tokens[:, 5:], cache=cache, counts=[4, 3])
    assert found.dtype is ragged.dtype is torch.float64
    for ours, exact in ((found, expected[:, :5]), (ragged[0], expected[0, 5:])):
        assert 1e-6 < (ours - exact).abs().max() < 0.1  # bfloat16 has 8 bits
    rows = [rows for block in cache.blocks.values() for rows in block.rows]
    assert {t.dtype for t in rows} == {torch.bfloat16}


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
    torch.testing.assert_close(found, model(tokens[:, :5])[:, 3:], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_forward_that_fails_halfway_leaves_the_cache_as_before(model):
    tokens, cache = some_tokens(2, 9), KINDS["growing"](model, 2)
    model(tokens[:, :3], cache=cache)

    def fail(*_):
        raise KeyboardInterrupt

    handle = model.blocks["1"].register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        model(tokens[:, 4:8], cache=cache)
    handle.remove()
    assert cache.lengths == [3, 3]
    found = model(tokens[:, 3:5], cache=cache)
    torch.testing.assert_close(found, model(tokens[:, :5])[:, 3:], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_forward_that_fails_halfway_leaves_recurrent_states_as_before():
    shape = {"width": 16, "mixer": ("mamba2", "mamba"), "mlp": "none", "positions": "none"}
    config = GPTConfig(vocab=19, context=24, mamba2=Mamba2Settings(head=8, state=4), **shape)
    model = build(config, 0, torch.float64).eval()
    tokens, cache = some_tokens(2, 9), KINDS["growing"](model, 2)
    model(tokens[:, :3], cache=cache)
    handle = model.blocks["1"].register_forward_pre_hook(lambda *_: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            model(tokens[:, 4:8], cache=cache)
    handle.remove()
    found = model(tokens[:, 3:5], cache=cache)
    torch.testing.assert_close(found, model(tokens[:, :5])[:, 3:], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_sequence_beyond_the_context(model):
    cache = KINDS["growing"](model, 1)
    model(some_tokens(1, 23), cache=cache)
    with pytest.raises(ValueError, match="would have 25 tokens with those in the cache"):
        model(some_tokens(1, 2), cache=cache)
    assert cache.lengths == [23]
    model(some_tokens(1, 1), cache=cache)


def test_counts_that_cannot_be(model):
    cache = KINDS["growing"](model, 2)
    with pytest.raises(ValueError, match="1 counts, but the cache is of 2 sequences"):
        cache.begin(3, [1])
    with pytest.raises(ValueError, match="a count of 4, but each sequence has 3 new tokens"):
        cache.begin(3, [1, 4])


@torch.no_grad()
def test_bytes_are_those_of_its_tensors(model):
    config = model.config
    per_token = 2 * config.key_heads * config.head_width * 8
    if config.mixer == "latent":
        per_token = (config.latent_widths.kv_rank + config.latent_widths.rope) * 8
    assert kept_by(model)[1].bytes_per_token(torch.float64) == per_token
    cache, growing = KINDS["preallocated"](model, 3), KINDS["growing"](model, 3)
    model(some_tokens(3, 9), cache=growing)
    assert cache.bytes == config.layers * 3 * 24 * per_token
    assert growing.bytes == config.layers * 3 * 9 * per_token


def test_states_are_read_as_written_and_not_rewound():
    kept = {4: Kept(per_sequence=((2, 3), (5,)))}
    assert kept[4].bytes_per_sequence(torch.bfloat16) == 22
    cache = Growing(kept, 2)
    assert [t.shape for t in cache.blocks[4].read()] == [(2, 2, 3), (2, 5)]
    cache.begin(1)
    cache.blocks[4].write(torch.ones(2, 2, 3), torch.full((2, 5), 2.0))
    cache.end()
    assert [t.mean().item() for t in cache.blocks[4].read()] == [1.0, 2.0]
    with pytest.raises(ValueError, match="cannot be rewound"):
        cache.rewind([0, 1])
    cache.rewind([1, 1])
    assert cache.bytes == 2 * 11 * 4
