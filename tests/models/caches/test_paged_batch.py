"""A model over paged sequences computes what it computes without a cache, and over slots."""

import pytest
import torch

from helpers.models.caches.cache import Kept
from helpers.models.caches.paged import Paged
from helpers.models.caches.paged_batch import PagedBatch
from helpers.models.gpt import kept_by
from tests.models.caches.conftest import EXACT, some_tokens


def paged_of(model, blocks=40, block_size=4, **options):
    return Paged(kept_by(model), blocks, block_size, torch.float64, **options)


def alone(model, tokens, last):
    return model(tokens[None])[0, len(tokens) - last :]


@torch.no_grad()
def test_sequences_come_and_go_in_any_order(model):
    texts = some_tokens(4, 20)
    paged = paged_of(model, 14)
    sequences = [paged.sequence() for _ in range(4)]
    for step in ({2: 5}, {0: 3, 2: 1}, {3: 7, 0: 1, 1: 2}, {1: 0, 2: 1}, {2: 2, 1: 2, 0: 2, 3: 2}):
        batch = PagedBatch(paged, [sequences[n] for n in step])
        counts, lengths = list(step.values()), batch.lengths
        x = torch.full((len(step), max(counts)), 7)
        for row, (n, count) in enumerate(step.items()):
            x[row, :count] = texts[n, lengths[row] : lengths[row] + count]
        logits = model(x, cache=batch, counts=counts)
        assert batch.lengths == [a + b for a, b in zip(lengths, counts, strict=True)]
        for row, (n, count) in enumerate(step.items()):
            expected = alone(model, texts[n, : batch.lengths[row]], count)
            torch.testing.assert_close(logits[row, :count], expected, **EXACT)
    sequences[2].free()
    late = paged.sequence()  # in the blocks of the one that is freed
    found = model(texts[:1, :14], cache=PagedBatch(paged, [late]))
    torch.testing.assert_close(found[0], alone(model, texts[0, :14], 14), **EXACT)


@torch.no_grad()
def test_forks_go_their_own_ways(model):
    text, ends = some_tokens(1, 6)[0], some_tokens(3, 5, seed=1)
    paged = paged_of(model)
    first = paged.sequence()
    model(text[None], cache=PagedBatch(paged, [first]))
    family = [first, first.fork(), first.fork()]
    for n in range(5):
        logits = model(ends[:, n : n + 1], cache=PagedBatch(paged, family))
    for row, end in enumerate(ends):
        expected = alone(model, torch.cat([text, end]), 1)
        torch.testing.assert_close(logits[row], expected, **EXACT)


@torch.no_grad()
def test_a_shared_prefix_gives_the_same_logits(model):
    text, ends = some_tokens(1, 9)[0], some_tokens(2, 4, seed=1)
    paged = paged_of(model, share_prefixes=True)
    first = paged.sequence()
    model(text[None], cache=PagedBatch(paged, [first]))
    paged.register(first, text.tolist())
    texts = [torch.cat([text, end]) for end in ends]
    sequences = [paged.sequence(one.tolist()) for one in texts]
    assert [one.length for one in sequences] == [8, 8]
    logits = model(torch.stack([one[8:] for one in texts]), cache=PagedBatch(paged, sequences))
    for row, one in enumerate(texts):
        torch.testing.assert_close(logits[row], alone(model, one, 5), **EXACT)


@torch.no_grad()
def test_another_sequence_s_nan_is_not_read(model):
    paged = paged_of(model, 8)
    texts = some_tokens(2, 10)
    short, bad = paged.sequence(), paged.sequence()
    model(texts[:, :5], cache=PagedBatch(paged, [bad, short]), counts=[5, 2])
    for block in {*range(len(paged.store.memory))} - {*short.table}:  # unused ones too
        paged.store.memory[block] = float("nan")
    logits = model(texts[:, 5:6], cache=PagedBatch(paged, [bad, short]))
    assert logits[0].isnan().any()
    expected = alone(model, torch.cat([texts[1, :2], texts[1, 5:6]]), 1)
    torch.testing.assert_close(logits[1], expected, **EXACT)


def test_what_a_batch_refuses(model):
    paged, other = paged_of(model), paged_of(model)
    one, freed = paged.sequence(), paged.sequence()
    with pytest.raises(ValueError, match="in the batch twice; fork it"):
        PagedBatch(paged, [one, one])
    with pytest.raises(ValueError, match="of another cache"):
        PagedBatch(other, [one])
    batch = PagedBatch(paged, [one, freed])
    freed.free()
    with pytest.raises(ValueError, match="freed already"):
        PagedBatch(paged, [freed])
    with pytest.raises(ValueError, match="freed already"):
        batch.begin(1)
    batch = PagedBatch(paged, [one])
    with pytest.raises(ValueError, match="2 counts, but the cache is of 1 sequences"):
        batch.begin(3, [1, 1])
    with pytest.raises(ValueError, match="a count of 4"):
        batch.begin(3, [4])
    assert paged.free_blocks == 40
    assert batch.bytes == paged.bytes == paged.store.bytes


def test_states_are_those_of_the_sequences_after_the_step_ends():
    paged = Paged({5: Kept(per_sequence=((2,),))}, 0)
    a, b, c = (paged.sequence() for _ in range(3))
    batch = PagedBatch(paged, [c, a])
    batch.begin(1, [1, 1])
    assert batch.blocks[5].counts == [1, 1]
    assert batch.blocks[5].read()[0].tolist() == [[0, 0], [0, 0]]
    batch.blocks[5].write(torch.tensor([[3.0, 3.0], [1.0, 1.0]]))
    batch.begin(1)  # the step before never ended
    assert batch.blocks[5].read()[0].tolist() == [[0, 0], [0, 0]]
    batch.end()  # and this one wrote nothing
    assert batch.blocks[5].read()[0].tolist() == [[0, 0], [0, 0]]
    batch.begin(1)
    batch.blocks[5].write(torch.tensor([[4.0, 4.0], [2.0, 2.0]]))
    batch.end()
    batch.end()
    assert (a.length, b.length, c.length) == (2, 0, 2)
    batch = PagedBatch(paged, [a, b, c])
    batch.begin(1)
    assert batch.blocks[5].read()[0][:, 1].tolist() == [2, 0, 4]


@torch.no_grad()
def test_steps_without_tokens(model):
    paged = paged_of(model)
    sequences = [paged.sequence(), paged.sequence()]
    model(torch.zeros(2, 3, dtype=torch.int64), cache=PagedBatch(paged, sequences), counts=[0, 0])
    assert [one.table for one in sequences] == [[], []]
    tokens = some_tokens(1, 4)
    found = model(tokens.expand(2, 4), cache=PagedBatch(paged, sequences), counts=[0, 4])
    torch.testing.assert_close(found[1], model(tokens)[0], **EXACT)
    assert [one.length for one in sequences] == [0, 4]


def test_what_is_kept_is_not_part_of_a_graph(model):
    """A forward outside of no_grad works, step after step."""
    paged, tokens = paged_of(model), some_tokens(2, 6)
    sequences = [paged.sequence(), paged.sequence()]
    found = [model(part, cache=PagedBatch(paged, sequences)) for part in tokens.split(2, 1)]
    assert not paged.store.memory.requires_grad
    torch.testing.assert_close(torch.cat(found, 1), model(tokens), **EXACT)
