"""A window with sinks: against a model that reads only what each query may see."""

from dataclasses import replace

import pytest
import torch

from helpers.models.caches.kept import Kept
from helpers.models.caches.window import Window
from helpers.models.gpt import build, kept_by
from tests.models.caches.conftest import SHAPES, varied

EXACT = {"rtol": 0, "atol": 1e-12}


def some_tokens(sequences, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 19, (sequences, tokens), generator=generator)


def window_of(model, sequences=1, window=5, sinks=2):
    return Window(kept_by(model), sequences, window, sinks, torch.float64)


def shallow(model):
    """The model's first block alone."""
    one = build(replace(model.config, layers=1), 0, torch.float64).eval()
    one.load_state_dict({n: p for n, p in model.state_dict().items() if n in one.state_dict()})
    return one


def visible(length, window, sinks):
    """The places that the last of `length` tokens sees."""
    return [n for n in range(length) if n < sinks or n >= length - window]


@pytest.mark.parametrize(("window", "sinks"), [(5, 2), (3, 0), (1, 1), (1, 0), (4, 3)], ids=str)
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "gpt2"])
@torch.no_grad()
def test_one_block_sees_the_sinks_and_the_window_without_gap(shape, window, sinks):
    """One block's keys depend on their own token only: so leave out all that is not seen."""
    model, text = shallow(varied(SHAPES[shape])), some_tokens(1, 13)
    cache = window_of(model, 1, window, sinks)
    for length in range(1, 14):
        found = model(text[:, length - 1 : length], cache=cache)[0, -1]
        expected = model(text[:, visible(length, window, sinks)])[0, -1]
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("chunks", [[13], [6, 1, 6], [1, 9, 3], [3, 4, 2, 4]], ids=str)
@pytest.mark.parametrize(("window", "sinks"), [(5, 2), (3, 0), (2, 4)], ids=str)
@torch.no_grad()
def test_any_split_gives_the_same_logits(model, chunks, window, sinks):
    text = some_tokens(2, 13)
    alone, cache = (window_of(model, 2, window, sinks) for _ in range(2))
    expected = torch.cat([model(one, cache=alone) for one in text.split(1, 1)], 1)
    found = torch.cat([model(part, cache=cache) for part in text.split(chunks, 1)], 1)
    torch.testing.assert_close(found, expected, **EXACT)
    assert cache.lengths == [13, 13]


@pytest.mark.parametrize("positions", ["rotary", "learned"])
@torch.no_grad()
def test_all_blocks_see_the_window_only(positions):
    """Without sinks, a window is a band in the mask of the whole text."""
    model = varied(SHAPES["llama" if positions == "rotary" else "gpt2"])
    text, places = some_tokens(1, 13), torch.arange(13)
    band = (places <= places[:, None]) & (places > places[:, None] - 4)
    expected = masked(model, text, band, places if positions == "rotary" else places.clamp(max=3))
    found = model(text, cache=window_of(model, 1, 4, 0))
    torch.testing.assert_close(found, expected, **EXACT)


def masked(model, text, mask, places):
    """A forward without a cache, with this mask in every block."""
    handles = [
        block.attention.core.register_forward_pre_hook(lambda _, qkv: (*qkv, mask))
        for block in model.blocks.values()
    ]
    try:
        return model(text, model.locate(text, places))
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def test_a_ragged_batch_gives_each_sequence_its_own_logits(model):
    texts, cache, found = some_tokens(4, 24), window_of(model, 4), [[], [], [], []]
    for counts in (
        [3, 9, 0, 1],
        [1, 1, 1, 1],
        [2, 0, 9, 3],
        [4, 4, 4, 4],
        [0, 0, 0, 0],
        [5, 1, 0, 2],
    ):
        x = torch.full((4, max(*counts, 1)), 7)
        for row, count in enumerate(counts):
            x[row, :count] = texts[row, cache.lengths[row] :][:count]
        logits = model(x, cache=cache, counts=counts)
        assert logits.isfinite().all()
        for row, count in enumerate(counts):
            found[row].append(logits[row, :count])
    assert cache.lengths == [15, 15, 14, 11]
    for row, length in enumerate(cache.lengths):
        expected = model(texts[row : row + 1, :length], cache=window_of(model))[0]
        torch.testing.assert_close(torch.cat(found[row]), expected, **EXACT)


@torch.no_grad()
def test_a_text_longer_than_the_context(model):
    """Places within the cache never exceed s + W."""
    text, cache = some_tokens(1, 60), window_of(model, 1, 15, 2)
    assert model.config.context == 24
    found = [model(part, cache=cache) for part in text.split(7, 1)]
    assert torch.cat(found, 1).isfinite().all()
    assert cache.lengths == [60]
    assert cache.begin(3).tolist() == [16, 16, 16]
    too_large = window_of(model, 1, 25, 0)
    with pytest.raises(ValueError, match="the context allows 24"):
        model(text, cache=too_large)


@torch.no_grad()
def test_a_forward_that_fails_halfway_leaves_the_cache_as_before(model):
    text, cache, other = some_tokens(1, 16), window_of(model), window_of(model)

    def fail(*_):
        raise KeyboardInterrupt

    model(text[:, :9], cache=cache)
    handle = model.blocks["1"].register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        model(text[:, 2:8], cache=cache)
    handle.remove()
    assert cache.lengths == [9]
    expected = model(text, cache=other)[:, 9:]
    torch.testing.assert_close(model(text[:, 9:], cache=cache), expected, **EXACT)


@torch.no_grad()
def test_rewinding_as_far_as_tokens_are_kept(model):
    text = some_tokens(1, 16)
    expected = model(text, cache=window_of(model))
    cache = window_of(model)
    model(text[:, :7], cache=cache)
    for length in (6, 3, 1):  # nothing is dropped yet
        cache.rewind([length])
        found = model(text[:, length:7], cache=cache)
        torch.testing.assert_close(found, expected[:, length:7], **EXACT)
    model(text[:, 7:12], cache=cache)
    with pytest.raises(ValueError, match=r"12 tokens to 10: its window would start at token 6"):
        cache.rewind([10])
    for wrong in (13, -1):
        with pytest.raises(ValueError, match=f"cannot rewind a sequence of 12 tokens to {wrong}"):
            cache.rewind([wrong])
    assert cache.lengths == [12]
    cache.rewind([11])
    torch.testing.assert_close(model(text[:, 11:], cache=cache), expected[:, 11:], **EXACT)
    cache.rewind([2])  # the sinks alone
    torch.testing.assert_close(model(text[:, 2:], cache=cache), expected[:, 2:], **EXACT)


@torch.no_grad()
def test_narrow_numbers(model):
    text, cache = some_tokens(1, 13), Window(kept_by(model), 1, 5, 2, torch.bfloat16)
    found = model(text, cache=cache)
    assert found.dtype == torch.float64
    model(text[:, :1], cache=cache)
    torch.testing.assert_close(found, model(text, cache=window_of(model)), **EXACT)


def test_states_and_refusals():
    kept = {5: Kept(per_sequence=((2,),))}
    cache = Window(kept, 2, 3)
    cache.begin(1)
    cache.blocks[5].write(torch.ones(2, 2))
    cache.begin(1)  # the step before never ended
    cache.end()  # and this one wrote nothing
    assert cache.blocks[5].read()[0].tolist() == [[0, 0], [0, 0]]
    cache.begin(1)
    cache.blocks[5].write(torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    cache.end()
    cache.end()
    assert cache.lengths == [2, 2]
    assert cache.blocks[5].read()[0][:, 0].tolist() == [1, 2]
    cache.rewind([2, 2])
    with pytest.raises(ValueError, match="cannot be rewound"):
        cache.rewind([0, 2])
    assert cache.bytes == 2 * 2 * 4
    for window, sinks in ((0, 1), (1, -1)):
        with pytest.raises(ValueError, match=f"a window of {window} tokens after {sinks} sinks"):
            Window(kept, 2, window, sinks)
    with pytest.raises(ValueError, match="a count of 2"):
        cache.begin(1, [2, 0])
