"""A window with sinks: against a model that reads only what each query may see."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.models.caches.cache import RotaryPart, Usage
from helpers.models.caches.window import NOTHING, Window, WindowStep, held_places
from helpers.models.gpt import build, kept_by
from tests.models.caches.conftest import EXACT, SHAPES, some_tokens, varied


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
        block.attention.core.register_forward_pre_hook(lambda _, given: (*given[:3], mask))
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


def test_what_a_window_refuses():
    for window, sinks in ((0, 1), (1, -1)):
        with pytest.raises(ValueError, match=f"a window of {window} tokens after {sinks} sinks"):
            Window({}, 2, window, sinks)


def test_a_window_counts_the_slots_that_it_uses():
    cache = Window({}, 2, 3, 1)
    cache.begin(9, [9, 2])
    cache.end()
    assert cache.usage() == Usage(slots=8, reserved=8, used=4 + 2, tokens=4 + 2)


def held(length, window, sinks):
    """Put token after token into its slot."""
    slots = [NOTHING] * (sinks + window)
    for n in range(length):
        slots[n if n < sinks else sinks + (n - sinks) % window] = n
    return slots


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("sinks", [0, 1, 3])
def test_held_places(window, sinks):
    lengths = list(range(15))
    found = held_places(torch.tensor(lengths)[:, None], window, sinks)
    assert found.tolist() == [held(length, window, sinks) for length in lengths]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=3),
    window=st.integers(1, 4),
    sinks=st.integers(0, 3),
    copies=st.booleans(),
)
def test_a_plan(rows, window, sinks, copies):
    lengths, added = zip(*rows, strict=True)
    tokens, slots = max(added), sinks + window
    step = WindowStep(lengths, added, tokens, window, sinks, "cpu")
    seen = step.seen(copies)
    assert seen.shape == (len(rows), 1, tokens, slots + tokens * (1 + sinks * copies))
    places = step.places.expand(len(rows), -1)
    assert step.moved == any(new and old + new > slots for old, new in rows)
    after = [held(old, window, sinks) for old in lengths]
    for row, column, slot in zip(*(index.tolist() for index in step.slots), strict=True):
        after[row][slot] = lengths[row] + column
    assert after == [held(old + new, window, sinks) for old, new in rows]
    places_written = list(zip(step.slots[0].tolist(), step.slots[2].tolist(), strict=True))
    assert len(set(places_written)) == len(places_written)  # or the order of writes would matter
    for row, (old, new) in enumerate(rows):
        keys = held(old, window, sinks) + [old + t if t < new else NOTHING for t in range(tokens)]
        sink_keys = [keys[i] for i in step.sink_index[row].tolist()] if tokens else []
        for t in range(new):
            query = old + t
            assert places[row, t] == min(query, slots - 1)
            assert step.dropped[row, t] == query - min(query, slots - 1)
            mine = [keys[i] for i in seen[row, 0, t, : slots + tokens].nonzero().flatten()]
            mine += [
                sink_keys[i % sinks] if i // sinks == t else "another query's"
                for i in seen[row, 0, t, slots + tokens :].nonzero().flatten().tolist()
            ]
            expected = [n for n in range(query + 1) if n < sinks or n > query - window]
            assert sorted(mine) == expected
        for t in range(new, tokens):  # padding sees itself only, and not nothing
            assert seen[row, 0, t, slots + t]


def test_places_are_flat_where_all_sequences_have_the_same():
    assert WindowStep([3, 3], [2, 2], 2, 4, 1, "cpu").places.tolist() == [3, 4]
    assert WindowStep([3, 3], [2, 1], 2, 4, 1, "cpu").places.tolist() == [[3, 4], [3, 0]]
    assert WindowStep([9, 2], [1, 1], 1, 4, 1, "cpu").places.tolist() == [[4], [2]]


def test_angles_are_those_of_the_dropped_tokens():
    step = WindowStep([6, 2], [2, 2], 2, 4, 1, "cpu")
    assert step.dropped.tolist() == [[2, 3], [0, 0]]
    cos, sin = step.angles(RotaryPart(width=4, base=100.0), torch.float64)
    turns = torch.tensor([[2.0, 3.0], [0.0, 0.0]], dtype=torch.float64)[..., None]
    angle = turns * torch.tensor([1.0, 0.1], dtype=torch.float64)
    torch.testing.assert_close(cos, angle.cos())
    torch.testing.assert_close(sin, angle.sin())
    for dtype, wide in ((torch.float32, torch.float32), (torch.bfloat16, torch.float32)):
        assert step.angles(RotaryPart(width=4, base=100.0), dtype)[0].dtype == wide
    assert step.angles(RotaryPart(width=2, base=100.0), torch.float64)[0].shape == (2, 2, 1)
    other = step.angles(RotaryPart(width=4, base=10_000.0), torch.float64)[0]
    torch.testing.assert_close(other, (turns * torch.tensor([1.0, 0.01])).cos())
