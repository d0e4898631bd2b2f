"""A packed row gives each sequence the logits that it has alone."""

import pytest
import torch

from helpers.models.caches.allocator import OutOfBlocks
from helpers.models.caches.cache import Kept
from helpers.models.caches.packed import Packed, runs
from helpers.models.caches.paged import Paged
from helpers.models.caches.paged_batch import PagedBatch
from helpers.models.gpt import kept_by
from tests.models.caches.conftest import EXACT, some_tokens


def paged_of(model, blocks=60, block_size=4):
    return Paged(kept_by(model), blocks, block_size, torch.float64)


def step(model, paged, sequences, texts, counts, padding=0):
    """Give each sequence its next tokens; check every logit against the text alone."""
    starts = [sequence.length for sequence in sequences]
    parts = [t[a : a + n] for t, a, n in zip(texts, starts, counts, strict=True)]
    row = torch.cat([*parts, torch.zeros(padding, dtype=torch.int64)])
    cache = Packed(paged, sequences, counts)
    logits = model(row[None], cache=cache)
    assert logits.shape[:2] == (1, sum(counts) + padding)
    assert cache.lengths == [a + n for a, n in zip(starts, counts, strict=True)]
    for text, start, n, found in zip(
        texts, starts, counts, logits[0, : sum(counts)].split(counts), strict=True
    ):
        expected = model(text[None, : start + n])[0, start:]
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("padding", [0, 3])
@torch.no_grad()
def test_prompts_pieces_and_single_tokens_in_one_row(model, padding):
    paged, texts = paged_of(model), some_tokens(5, 20)
    sequences = [paged.sequence() for _ in range(5)]
    step(model, paged, sequences[:3], texts[:3], [3, 1, 9], padding)
    step(model, paged, sequences[:3], texts[:3], [1, 1, 1], padding)
    step(model, paged, sequences, texts, [1, 1, 4, 8, 1], padding)
    step(model, paged, sequences, texts, [5, 1, 1, 2, 1], padding)
    some = [4, 0, 3]  # any of them, in any order
    step(model, paged, [sequences[n] for n in some], texts[some], [1, 1, 1], padding)


@torch.no_grad()
def test_packed_and_padded_steps_follow_each_other(model):
    paged, texts = paged_of(model), some_tokens(2, 20)
    sequences = [paged.sequence() for _ in range(2)]
    model(texts[:, :5], cache=PagedBatch(paged, sequences), counts=[5, 3])
    step(model, paged, sequences, texts, [1, 2])
    fork = sequences[0].fork()
    step(model, paged, [sequences[0], fork], texts[[0, 0]], [2, 1])
    logits = model(texts[:1, 7:9], cache=PagedBatch(paged, [fork]))
    torch.testing.assert_close(logits, model(texts[:1, :9])[:, 7:], **EXACT)


@torch.no_grad()
def test_out_of_blocks_changes_nothing(model):
    paged, texts = paged_of(model, blocks=4), some_tokens(2, 20)
    sequences = [paged.sequence() for _ in range(2)]
    step(model, paged, sequences, texts, [4, 5])
    with pytest.raises(OutOfBlocks, match="2 more blocks are needed, but 1 of 4"):
        model(texts[:1, :5], cache=Packed(paged, sequences, [1, 4]))
    assert (paged.free_blocks, [s.length for s in sequences]) == (1, [4, 5])
    step(model, paged, sequences, texts, [1, 3])


@torch.no_grad()
def test_a_forward_that_fails_leaves_the_lengths(model):
    paged, texts = paged_of(model), some_tokens(2, 20)
    sequences = [paged.sequence() for _ in range(2)]
    step(model, paged, sequences, texts, [2, 1])
    handle = model.blocks["1"].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(texts[:1, :7], cache=Packed(paged, sequences, [6, 1]))
    handle.remove()
    step(model, paged, sequences, texts, [2, 1])


@torch.no_grad()
def test_another_sequence_s_nan_is_not_read(model):
    paged, texts = paged_of(model), some_tokens(2, 20)
    good, bad = paged.sequence(), paged.sequence()
    step(model, paged, [bad, good], texts[[1, 0]], [9, 2])
    paged.store.memory[bad.table] = float("nan")
    logits = model(texts[:1, 2:4], cache=Packed(paged, [good, bad], [1, 1]))
    torch.testing.assert_close(logits[0, 0], model(texts[:1, :3])[0, 2], **EXACT)
    assert logits[0, 1].isnan().all()


@torch.no_grad()
def test_rewind(model):
    paged, texts = paged_of(model), some_tokens(2, 20)
    sequences = [paged.sequence() for _ in range(2)]
    cache = Packed(paged, sequences, [6, 3])
    model(torch.cat([texts[0, :6], texts[1, :3]])[None], cache=cache)
    with pytest.raises(ValueError, match="cannot rewind a sequence of 3 tokens to 4"):
        cache.rewind([5, 4])
    assert cache.lengths == [6, 3]
    cache.rewind([5, 1])
    step(model, paged, sequences, texts, [1, 2])
    assert cache.bytes == paged.bytes


@pytest.mark.parametrize(
    ("counts", "blocks", "expected"),
    [
        ([1], [3], [(0, 1, 0)]),
        ([1, 1, 1], [1, 1, 2], [(0, 3, 0)]),
        ([2, 2], [1, 1], [(0, 1, 0), (1, 2, 2)]),
        ([1, 1, 5, 1, 3], [1] * 5, [(0, 2, 0), (2, 3, 2), (3, 4, 7), (4, 5, 8)]),
        ([4, 1, 1], [1] * 3, [(0, 1, 0), (1, 3, 4)]),
        ([1] * 5, [1, 3, 4, 6, 9], [(0, 2, 0), (2, 4, 2), (4, 5, 4)]),  # at most half as many more
        ([1, 1], [9, 1], [(0, 1, 0), (1, 2, 1)]),
    ],
)
def test_single_tokens_side_by_side_are_one_group(counts, blocks, expected):
    assert runs(counts, blocks) == expected


@torch.no_grad()
def test_long_and_short_sequences_in_groups(model):
    paged, texts = paged_of(model, block_size=1), some_tokens(4, 24)
    sequences = [paged.sequence() for _ in range(4)]
    step(model, paged, sequences, texts, [1, 3, 9, 20])
    step(model, paged, sequences, texts, [1, 1, 1, 1])
    order = [3, 0, 1, 2]
    step(model, paged, [sequences[n] for n in order], texts[order], [1, 1, 1, 1])


@torch.no_grad()
def test_a_narrow_cache_keeps_narrow_numbers(model):
    paged, texts = Paged(kept_by(model), 20, 4, torch.bfloat16), some_tokens(2, 20)
    sequences, expected = [paged.sequence() for _ in range(2)], model(texts)
    model(torch.cat([texts[0, :5], texts[1, :3]])[None], cache=Packed(paged, sequences, [5, 3]))
    row = torch.cat([texts[0, 5:6], texts[1, 3:5]])[None]
    [found] = model(row, cache=Packed(paged, sequences, [1, 2]))
    exact = torch.cat([expected[0, 5:6], expected[1, 3:5]])
    assert found.dtype is torch.float64
    assert 1e-6 < (found - exact).abs().max() < 0.1  # bfloat16 has 8 bits


def test_what_is_refused(model):
    paged = paged_of(model)
    one, two = paged.sequence(), paged.sequence()
    with pytest.raises(ValueError, match=r"counts \[1\] of 2 sequences"):
        Packed(paged, [one, two], [1])
    with pytest.raises(ValueError, match=r"counts \[1, 0\] of 2 sequences; give 1 or more"):
        Packed(paged, [one, two], [1, 0])
    with pytest.raises(ValueError, match="in the batch twice"):
        Packed(paged, [one, one], [1, 1])
    with pytest.raises(ValueError, match="a row of 2 tokens, but the sequences have 3"):
        Packed(paged, [one, two], [1, 2]).begin(2)
    with pytest.raises(ValueError, match="never padded by counts"):
        Packed(paged, [one, two], [1, 2]).begin(3, [3])
    assert paged.free_blocks == 60
    recurrent = Paged({0: Kept(per_sequence=((2,),))}, 4)
    with pytest.raises(ValueError, match="the model has a recurrent block"):
        Packed(recurrent, [recurrent.sequence()], [1])
