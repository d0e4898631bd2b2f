"""A Source gives each rank its shard of each batch. Held-out batches are not shuffled."""

import pytest
import torch

from helpers.data.blocks import pack
from helpers.data.order import Order
from helpers.data.source import Source, held_out


@pytest.fixture(scope="module")
def blocks():
    return pack(["a story of bytes, " * 40, "and another one; " * 40], length=16)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_shards_put_together_are_the_global_batch(blocks, world):
    source = Source(blocks, Order(len(blocks), batch=5, seed=3))
    assert torch.equal(source.shard(4).tokens, source.shard(4, 0, 1).tokens)
    for k in (0, 1, 20):
        parts = [source.shard(k, rank, world) for rank in range(world)]
        together = torch.cat([part.tokens for part in parts])
        expected = blocks.batch(source.order.global_batch(k))
        assert torch.equal(together, expected.tokens)
        assert torch.equal(torch.cat([part.targets for part in parts]), expected.targets)
        assert torch.cat([part.numbers for part in parts]).tolist() == list(range(5))
        assert {part.step for part in parts} == {k}


def test_held_out_is_every_block_once(blocks):
    batches = held_out(blocks, 7, 3)
    assert [len(batch) for batch in batches] == [3, 3, 1]
    tokens = torch.cat([batch.tokens for batch in batches])
    assert torch.equal(tokens, blocks.batch(range(7)).tokens)
    assert sum(map(len, held_out(blocks, len(blocks), 3))) == len(blocks)  # all of them
    with pytest.raises(ValueError, match="held-out sequences are too many"):
        held_out(blocks, len(blocks) + 1, 3)
