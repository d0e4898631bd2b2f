"""With any cache, the fused forward gives the plain model's logits."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.inference.decoder.fused import Core, Fused
from helpers.models.caches.cache import CacheFull
from helpers.models.caches.packed import Packed
from helpers.models.caches.paged import Paged
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.gpt import kept_by

CACHES = {
    "paged": lambda model, b: (paged := Paged(kept_by(model), 40, 4, torch.float64)).batch(
        [paged.sequence() for _ in range(b)]
    ),
    "preallocated": lambda model, b: Preallocated(kept_by(model), b, 24, torch.float64),
    "growing": lambda model, b: Growing(kept_by(model), b, torch.float64),
}
every_cache = pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)


def some_tokens(sequences, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 19, (sequences, tokens), generator=generator)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@every_cache
@pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 3, 1], [9], [1, 8]], ids=str)
@torch.no_grad()
def test_any_split_of_a_prompt(model, make, chunks):
    tokens, cache, fused, found = some_tokens(3, 9), make(model, 3), Fused(model), []
    for part in tokens.split(chunks, 1):
        found.append(fused(part, cache=cache))
    assert cache.lengths == [9, 9, 9]
    close(torch.cat(found, 1), model(tokens))


@every_cache
@torch.no_grad()
def test_ragged_steps(model, make):
    rows, cache, fused = some_tokens(4, 14), make(model, 4), Fused(model)
    expected = model(rows)
    for counts in ([3, 5, 0, 1], [1, 1, 1, 1], [2, 0, 6, 3], [1, 1, 0, 1], [0, 1, 0, 0]):
        x = torch.full((4, max(counts)), 7)  # the padding is a token like any other
        for row, count in enumerate(counts):
            start = cache.lengths[row]
            x[row, :count] = rows[row, start : start + count]
        logits = fused(x, cache=cache, counts=counts)
        assert logits.isfinite().all()
        for row, count in enumerate(counts):
            length = cache.lengths[row]
            close(logits[row, :count], expected[row, length - count : length])
    assert cache.lengths == [7, 8, 7, 6]


@torch.no_grad()
def test_a_mask_that_comes_twice_and_one_that_changes(llama):
    """Sequences of other lengths, in steps of the same size: an old mask must not stay."""
    rows, fused = some_tokens(2, 12), Fused(llama)
    expected = llama(rows)
    for counts in ([2, 5], [5, 2]):
        cache = CACHES["preallocated"](llama, 2)
        fused(rows[:, :5], cache=cache, counts=counts)
        for more in range(3):
            places = [count + more for count in counts]
            found = fused(rows[range(2), places][:, None], cache=cache)
            close(found[:, 0], expected[range(2), places])


@torch.no_grad()
def test_tokens_of_several_sequences_in_one_row(model):
    rows, fused = some_tokens(5, 14), Fused(model)
    expected, paged = model(rows), Paged(kept_by(model), 40, 4, torch.float64)
    sequences = [paged.sequence() for _ in rows]
    for counts in ([3, 5, 1, 1, 4], [1] * 5, [1, 1, 6, 1, 1], [2, 1, 1, 3, 1], [1] * 5):
        starts = [sequence.length for sequence in sequences]
        parts = [rows[n, i : i + c] for n, (i, c) in enumerate(zip(starts, counts, strict=True))]
        found = fused(
            torch.cat([*parts, rows[0, :2]])[None], cache=Packed(paged, sequences, counts)
        )
        for number, one in enumerate(found[0, :-2].split(counts)):
            close(one, expected[number, starts[number] : starts[number] + counts[number]])


@torch.no_grad()
def test_results_stay_when_the_next_step_runs(llama):
    cache, fused = CACHES["growing"](llama, 2), Fused(llama)
    first = fused(some_tokens(2, 3), cache=cache)
    kept = first.clone()
    fused(some_tokens(2, 3, seed=1), cache=cache)
    assert torch.equal(first, kept)


@torch.no_grad()
def test_what_it_refuses_leaves_the_cache_as_before(llama):
    tokens, fused = some_tokens(2, 24), Fused(llama)
    cache = Preallocated(kept_by(llama), 2, 5, torch.float64)
    fused(tokens[:, :3], cache=cache)
    with pytest.raises(CacheFull, match="would have 6 tokens"):
        fused(tokens[:, 3:6], cache=cache)
    assert cache.lengths == [3, 3]
    close(fused(tokens[:, 3:5], cache=cache), llama(tokens[:, :5])[:, 3:])
    cache = CACHES["growing"](llama, 2)
    fused(tokens, cache=cache)
    with pytest.raises(ValueError, match="would have 25 tokens with those in the cache, but the"):
        fused(tokens[:, :1], cache=cache)
    assert cache.lengths == [24, 24]


def test_nothing_new_at_all(llama):
    cache, fused = CACHES["growing"](llama, 2), Fused(llama)
    assert fused(torch.zeros(2, 0, dtype=torch.int64), cache=cache).shape == (2, 0, 19)
    assert cache.lengths == [0, 0]


class Copies(TorchDispatchMode):
    """Notes how many numbers each copy has."""

    def __init__(self):
        super().__init__()
        self.numbers = []

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # otherwise the first use imports torch._dynamo, which takes a second

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten._unsafe_view):
            self.numbers.append(made.numel())
        return made


@pytest.mark.parametrize("strided", [False, True])
def test_the_core_with_one_mask_after_another(strided):
    """One query and grouped heads; keys in order, or as a view in which heads alternate."""
    generator, core = torch.Generator().manual_seed(0), Core()
    q = torch.randn(3, 4, 1, 6, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 3, 2, 7, 6, generator=generator, dtype=torch.float64)
    if strided:
        k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v))
    with Copies() as copies:
        core(q, k, v)
    assert k.numel() not in copies.numbers  # the cache is read where it is
    first = torch.arange(7) <= torch.tensor([6, 2, 4])[:, None, None, None]  # (B, 1, 1, S)
    for seen in (first, first, first.flip(0), None):
        expected = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1.0, enable_gqa=True)
        close(core(q, k, v, seen), expected)
