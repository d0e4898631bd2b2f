from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.data.batch import (
    IGNORED,
    Batch,
    Pictures,
    copying_batch,
    part,
    random_batch,
)


@given(st.integers(0, 100), st.integers(1, 12))
def test_parts_in_order_are_the_whole_and_sizes_differ_by_one(size, parts):
    things = list(range(size))
    cut = [things[part(size, index, parts)] for index in range(parts)]
    assert [thing for one in cut for thing in one] == things
    sizes = [len(one) for one in cut]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("index", [-1, 3, 4])
def test_a_part_that_is_not_there_is_refused(index):
    with pytest.raises(ValueError, match=f"no part {index} of 3: use 0 to 2"):
        part(10, index, 3)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 9])
def test_shards_and_micro_batches_put_together_are_the_batch(world):
    batch = random_batch(0, sequences=7, length=5, ignored=0.3)
    for pieces in ([batch.shard(rank, world) for rank in range(world)], batch.micro(world)):
        assert len(pieces) == world
        assert torch.equal(torch.cat([p.tokens for p in pieces]), batch.tokens)
        assert torch.equal(torch.cat([p.targets for p in pieces]), batch.targets)
        assert sum(p.counted() for p in pieces) == batch.counted()


def test_a_rank_with_no_data_has_an_empty_batch():
    empty = random_batch(0, sequences=2, length=5).shard(2, 3)
    assert empty.tokens.shape == (0, 5)
    assert len(empty) == empty.counted() == 0
    assert [len(micro) for micro in empty.micro(2)] == [0, 0]


def test_documents_go_with_their_sequences():
    batch = replace(random_batch(0, 3, 6), documents=[[1, 5], [6], [2, 2, 2]])
    assert batch.documents == ((1, 5), (6,), (2, 2, 2))
    assert [one.documents for one in batch.micro(2)] == [((1, 5), (6,)), ((2, 2, 2),)]
    assert batch.shard(3, 4).documents == ()
    assert batch.to("cpu").documents == batch.documents
    part = replace(batch, tokens=batch.tokens[:, :2], targets=batch.targets[:, 3:5])
    assert part.documents == batch.documents  # a rank that has some of the tokens


@pytest.mark.parametrize("documents", [[[3]], [[3], [4]], [[2], [2]], [[3, 0], [3]], [[4], [3]]])
def test_documents_that_do_not_fill_the_sequences_are_refused(documents):
    with pytest.raises(ValueError, match="do not fill 2 sequences of 3 tokens"):
        replace(random_batch(0, 2, 3), documents=documents)


@pytest.mark.parametrize("shapes", [((2, 3), (2, 4)), ((3,), (3,)), ((2, 3, 1), (2, 3, 1))])
def test_other_shapes_are_refused(shapes):
    tokens, targets = (torch.zeros(shape, dtype=torch.int64) for shape in shapes)
    with pytest.raises(ValueError, match=r"must both be \(B, T\)"):
        Batch(tokens=tokens, targets=targets)


def test_random_targets_are_the_next_tokens():
    batch = random_batch(3, sequences=4, length=6, vocab=11)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert batch.tokens.shape == (4, 6)
    assert 0 <= int(batch.tokens.min()) <= int(batch.tokens.max()) < 11
    assert torch.equal(batch.tokens, random_batch(3, 4, 6, vocab=11).tokens)
    assert not torch.equal(batch.tokens, random_batch(4, 4, 6, vocab=11).tokens)
    some = [random_batch(3, 4, 6, ignored=0.5).targets for _ in range(2)]
    assert torch.equal(*some)
    assert batch.tokens.is_contiguous()
    assert batch.targets.is_contiguous()
    drawn = random_batch(0, 20, 500).tokens  # bytes, unless you choose
    assert sorted(set(drawn.flatten().tolist())) == list(range(256))


def test_the_share_of_ignored_targets_is_the_probability_given():
    batch = random_batch(0, sequences=50, length=200, ignored=0.25)
    share = 1 - batch.counted() / batch.targets.numel()
    assert share == pytest.approx(0.25, abs=0.02)  # 4.6 standard errors
    assert len(set(map(tuple, batch.tokens.tolist()))) == 50


@pytest.mark.parametrize("length", [3, 8, 9])
def test_counted_targets_of_a_copy_stand_in_the_word_before(length):
    batch = copying_batch(0, sequences=5, length=length, vocab=9)
    half, tokens, targets = length // 2, batch.tokens, batch.targets
    assert tokens.shape == (5, length)
    assert (targets[:, :half] == IGNORED).all()
    assert torch.equal(targets[:, half : 2 * half], tokens[:, :half])
    assert batch.counted() == 5 * (length - half)
    assert tokens[:, :half].min() > 0
    assert (tokens[:, half] == 0).all()


def test_copies_differ_by_row_and_seed():
    tokens = copying_batch(0, sequences=20, length=30, vocab=9).tokens
    assert len(set(map(tuple, tokens.tolist()))) == 20
    assert set(tokens.flatten().tolist()) == set(range(9))
    assert torch.equal(tokens, copying_batch(0, 20, 30, vocab=9).tokens)
    assert not torch.equal(tokens, copying_batch(1, 20, 30, vocab=9).tokens)
    words = copying_batch(0, 20, 1001).tokens[:, :500]
    assert sorted(set(words.flatten().tolist())) == list(range(1, 256))
    smallest = copying_batch(0, 2, 3, vocab=2)
    assert (smallest.tokens.tolist(), smallest.targets.tolist()) == (
        [[1, 0, 1]] * 2,
        [[IGNORED, 1, 0]] * 2,
    )
    assert smallest.tokens.is_contiguous()
    assert smallest.targets.is_contiguous()


@pytest.mark.parametrize("odd", [{"length": 2, "vocab": 9}, {"length": 5, "vocab": 1}])
def test_what_cannot_be_copied_is_refused(odd):
    with pytest.raises(ValueError, match="length {length} or vocab {vocab} is".format(**odd)):
        copying_batch(0, sequences=1, **odd)


def test_sequences_keep_their_numbers_through_every_cut():
    batch = random_batch(0, 7, 3)
    assert batch.numbers.tolist() == list(range(7))
    shard = batch.shard(1, 3)
    assert shard.numbers.tolist() == [3, 4]
    assert [m.numbers.tolist() for m in shard.micro(3)] == [[3], [4], []]
    later = replace(batch, step=4)
    assert later.shard(2, 3).to("cpu").step == 4
    assert [micro.step for micro in later.micro(2)] == [4, 4]
    there = replace(later, numbers=None).to("meta")
    assert all(getattr(there, name).is_meta for name in ("tokens", "targets", "numbers"))
    made_there = Batch(tokens=there.tokens, targets=there.targets)
    assert (made_there.numbers.is_meta, len(made_there.numbers), made_there.step) == (True, 7, 0)
    for numbers, shape in ((torch.arange(2), r"\(2,\)"), (torch.zeros(7, 1), r"\(7, 1\)")):
        with pytest.raises(ValueError, match=f"7 sequences, but numbers of shape {shape}"):
            replace(batch, numbers=numbers)


def test_pictures_are_cut_and_counted_one_by_one():
    images = torch.arange(5 * 2 * 3.0).view(5, 2, 3)
    batch = Pictures(images=images, step=2)
    assert (len(batch), batch.counted(), batch.numbers.tolist()) == (5, 5, [0, 1, 2, 3, 4])
    cut = batch.shard(1, 2)
    assert (len(cut), cut.counted(), cut.step, cut.numbers.tolist()) == (2, 2, 2, [3, 4])
    assert torch.equal(cut.images, images[3:])
    assert cut.images.data_ptr() == images[3:].data_ptr()  # a view
    with pytest.raises(ValueError, match=r"5 pictures, but numbers of shape \(2,\)"):
        Pictures(images=images, numbers=torch.arange(2))
    for wrong in (images[0], images[None]):
        with pytest.raises(ValueError, match=r"images must be \(B, H, W\), not"):
            Pictures(images=wrong)


def test_a_copy_to_a_device_need_not_be_waited_for(monkeypatch):
    asked, real = [], torch.Tensor.to

    def to(tensor, *given, **options):
        asked.append((given, options))
        return real(tensor, *given, **options)

    monkeypatch.setattr(torch.Tensor, "to", to)
    random_batch(0, 2, 3).to("cpu", non_blocking=True)
    random_batch(0, 2, 3).to("cpu")
    expected = [(("cpu",), {"non_blocking": wait}) for wait in (True, False)]
    assert asked == [expected[0]] * 3 + [expected[1]] * 3
