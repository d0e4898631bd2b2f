"""What every cache promises: the model's logits for any split, its bytes, and no half steps.

A window that is larger than the text, and int8, are caches like the others. Int8 is compared with
itself: what it adds is in its own test.
"""

from functools import cache as once

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.models.caches.paged import Paged
from helpers.models.caches.paged_batch import PagedBatch
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.caches.quantised import Quantised
from helpers.models.caches.store import Workspace
from helpers.models.caches.window import Window
from helpers.models.gpt import kept_by
from tests.models.caches.conftest import EXACT, SHAPES, varied

CONTEXT, ROWS = 24, 3
WIDE = torch.float64


def paged(kept, dtype, share):
    store = Paged(kept, ROWS * 8, 4, dtype, share_prefixes=share)
    return PagedBatch(store, [store.sequence() for _ in range(ROWS)])


MAKE = {
    "preallocated": lambda kept, dtype=WIDE: Preallocated(kept, ROWS, CONTEXT, dtype),
    "growing": lambda kept, dtype=WIDE: Growing(kept, ROWS, dtype),
    "paged": lambda kept, dtype=WIDE: paged(kept, dtype, share=False),
    "paged, prefixes shared": lambda kept, dtype=WIDE: paged(kept, dtype, share=True),
    "window": lambda kept, dtype=WIDE: Window(kept, ROWS, CONTEXT - 2, 2, dtype),
    "int8": lambda kept, dtype=WIDE: Quantised(kept, ROWS, CONTEXT, dtype),
}
MODELS = {name: varied(shape) for name, shape in SHAPES.items()}
TEXTS = torch.randint(0, 19, (ROWS, CONTEXT), generator=torch.Generator().manual_seed(5))
every_cache = pytest.mark.parametrize("make", MAKE)
every_model = pytest.mark.parametrize("shape", SHAPES)

counts = st.lists(st.integers(0, 4), min_size=ROWS, max_size=ROWS)


@once
def expected_of(shape, make):
    """All logits: the model's, or those of int8 token by token."""
    model = MODELS[shape]
    with torch.no_grad():
        if make != "int8":
            return model(TEXTS)
        kept = MAKE[make](kept_by(model))
        return torch.cat([model(one, cache=kept) for one in TEXTS.split(1, 1)], 1)


def advance(model, cache, step):
    """Read the next tokens of each text. Return the logits and where they start."""
    starts, x = list(cache.lengths), torch.full((ROWS, max(*step, 1)), 7)
    for row, count in enumerate(step):
        x[row, :count] = TEXTS[row, starts[row] : starts[row] + count]
    return model(x, cache=cache, counts=step), starts


@every_cache
@every_model
@settings(max_examples=6, deadline=None, derandomize=True)
@given(steps=st.lists(st.tuples(counts, counts), min_size=1, max_size=5))
@torch.no_grad()
def test_any_steps_and_rewinds_give_the_model_s_logits(shape, make, steps):
    model = MODELS[shape]
    expected, cache = expected_of(shape, make), MAKE[make](kept_by(model))
    for step, back in steps:
        logits, starts = advance(model, cache, step)
        assert list(cache.lengths) == [a + b for a, b in zip(starts, step, strict=True)]
        for row, (start, count) in enumerate(zip(starts, step, strict=True)):
            target = expected[row, start : start + count]
            torch.testing.assert_close(logits[row, :count], target, **EXACT)
        cache.rewind([max(n - b, 0) for n, b in zip(cache.lengths, back, strict=True)])


def storages(found, seen):
    """Yield the address and the bytes of every storage that holds what is kept.

    A step's plan is of whole numbers and masks; a paged cache's workspace holds copies.
    """
    if id(found) in seen or isinstance(found, Workspace):
        return
    seen.add(id(found))
    if isinstance(found, torch.Tensor):
        if found.dtype not in (torch.int64, torch.bool):
            yield found.untyped_storage().data_ptr(), found.untyped_storage().nbytes()
    elif isinstance(found, dict | list | tuple):
        for value in found.values() if isinstance(found, dict) else found:
            yield from storages(value, seen)
    elif type(found).__module__.startswith("helpers.models.caches"):
        yield from storages(vars(found), seen)


@every_cache
@every_model
@torch.no_grad()
def test_bytes_are_what_torch_s_storages_occupy(shape, make):
    model = MODELS[shape]
    cache = MAKE[make](kept_by(model))
    for step in ([0, 0, 0], [4, 1, 0], [1, 1, 1]):
        advance(model, cache, step)
        found = {address: size for address, size in storages(cache, set()) if size}
        assert sum(found.values()) == cache.bytes
    assert cache.bytes > 0


@every_cache
@every_model
@torch.no_grad()
def test_a_step_that_fails_changes_nothing(shape, make):
    model = MODELS[shape]
    expected, cache = expected_of(shape, make), MAKE[make](kept_by(model))
    advance(model, cache, [4, 2, 0])

    def fail(*_):
        raise KeyboardInterrupt

    handle = model.blocks["1"].register_forward_pre_hook(fail)
    try:
        with pytest.raises(KeyboardInterrupt):
            model(torch.full((ROWS, 6), 3), cache=cache)
    finally:
        handle.remove()
    with pytest.raises(ValueError, match="a count of 3"):
        cache.begin(2, [1, 3, 0])
    with pytest.raises(ValueError, match="2 counts"):
        cache.begin(2, [1, 1])
    with pytest.raises(ValueError, match="cannot rewind a sequence of 2 tokens to 3"):
        cache.rewind([4, 3, 0])
    assert list(cache.lengths) == [4, 2, 0]
    logits, starts = advance(model, cache, [3, 3, 3])
    for row, start in enumerate(starts):
        torch.testing.assert_close(logits[row, :3], expected[row, start : start + 3], **EXACT)


@every_cache
@every_model
@torch.no_grad()
def test_a_narrow_cache_keeps_narrow_numbers(shape, make):
    """Of steps in which all sequences get the same number of tokens, and of ragged ones."""
    model = MODELS[shape]
    cache, expected = MAKE[make](kept_by(model), torch.bfloat16), model(TEXTS[:, :9])
    for count in ([5, 5, 5], [4, 3, 0]):
        logits, starts = advance(model, cache, count)
        assert logits.dtype is WIDE
    error = logits[0, :4] - expected[0, starts[0] : starts[0] + 4]
    assert 1e-6 < error.abs().max() < 0.2  # bfloat16 has 8 bits
