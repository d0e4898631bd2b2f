"""Each rank's shard of each batch, of text or of pictures. Held-out batches are not shuffled."""

import pytest
import torch

from helpers.data.blocks import pack
from helpers.data.order import Order
from helpers.data.source import PictureSource, Source, held_out
from tests.pictures import random_pictures

IMAGES = random_pictures(0, 10, side=3).images


@pytest.fixture(scope="module")
def blocks():
    return pack(["a story of bytes, " * 40, "and another one; " * 40], length=16)


@pytest.mark.parametrize("kind", ["text", "pictures"])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shards_put_together_are_the_global_batch(blocks, world, kind):
    text = kind == "text"
    order = Order(len(blocks) if text else len(IMAGES), batch=5, seed=3)
    source = Source(blocks, order) if text else PictureSource(IMAGES, order)
    for k in (0, 1, 20):
        wanted = order.global_batch(k)
        whole = blocks.batch(wanted) if text else source.shard(k)
        assert text or torch.equal(whole.images, IMAGES[wanted])
        parts = [source.shard(k, rank, world) for rank in range(world)]
        for name in whole.TENSORS:
            together = torch.cat([getattr(part, name) for part in parts])
            assert torch.equal(together, getattr(whole, name))
            assert torch.equal(getattr(source.shard(k), name), together)  # of one rank
        assert torch.cat([part.numbers for part in parts]).tolist() == list(range(5))
        assert {part.step for part in parts} == {k}


def test_an_order_for_another_number_of_pictures_is_refused():
    with pytest.raises(ValueError, match="10 pictures, but the order is for 11"):
        PictureSource(IMAGES, Order(11, batch=5))


def test_held_out_is_every_block_once(blocks):
    batches = held_out(blocks, 7, 3)
    assert [len(batch) for batch in batches] == [3, 3, 1]
    tokens = torch.cat([batch.tokens for batch in batches])
    assert torch.equal(tokens, blocks.batch(range(7)).tokens)
    assert sum(map(len, held_out(blocks, len(blocks), 3))) == len(blocks)  # all of them
    with pytest.raises(ValueError, match="held-out sequences are too many"):
        held_out(blocks, len(blocks) + 1, 3)
