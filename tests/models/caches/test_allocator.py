"""Blocks are given out once, and are free again when the last reference is released."""

import pytest

from helpers.models.caches.allocator import BlockAllocator, OutOfBlocks
from helpers.models.caches.cache import CacheFull


def test_every_block_is_given_out_once():
    allocator = BlockAllocator(3)
    assert [allocator.allocate() for _ in range(3)] == [0, 1, 2]
    assert (allocator.blocks, allocator.free, allocator.used) == (3, 0, 3)
    with pytest.raises(OutOfBlocks, match="1 more block is needed, but 0 of 3 are free") as raised:
        allocator.allocate()
    assert isinstance(raised.value, CacheFull)
    assert (raised.value.needed, raised.value.free) == (1, 0)
    allocator.release(1)
    assert allocator.allocate() == 1


def test_the_block_that_was_released_first_is_used_again_first():
    allocator = BlockAllocator(3)
    for _ in range(3):
        allocator.allocate()
    for block in (2, 0, 1):
        allocator.release(block)
    assert [allocator.allocate() for _ in range(3)] == [2, 0, 1]


def test_a_free_block_can_be_reclaimed_for_its_content():
    allocator = BlockAllocator(3)
    assert allocator.reclaim(1) == 1
    assert (allocator.references(1), allocator.free) == (1, 2)
    with pytest.raises(ValueError, match="block 1 is in use; share it"):
        allocator.reclaim(1)
    assert [allocator.allocate(), allocator.allocate()] == [0, 2]


def test_calls_that_cannot_be():
    allocator = BlockAllocator(2)
    with pytest.raises(ValueError, match="block 0 is free already"):
        allocator.release(0)
    with pytest.raises(ValueError, match="block 0 is free; only a block in use"):
        allocator.share(0)
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match=f"no block {wrong}; the blocks are 0 to 1"):
            allocator.references(wrong)
    with pytest.raises(ValueError, match="the number of blocks is -1"):
        BlockAllocator(-1)
    assert (allocator.free, allocator.used) == (2, 0)
    with pytest.raises(OutOfBlocks):
        BlockAllocator(0).allocate()
