"""Blocks are given out once, and are free again when the last reference is released."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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


class Owners(RuleBasedStateMachine):
    """A model of the allocator: a list of references, whoever holds them."""

    BLOCKS = 4

    def __init__(self):
        super().__init__()
        self.allocator, self.held = BlockAllocator(self.BLOCKS), []

    @rule()
    def allocate(self):
        if len(set(self.held)) == self.BLOCKS:
            with pytest.raises(OutOfBlocks):
                self.allocator.allocate()
        else:
            block = self.allocator.allocate()
            assert block not in self.held
            self.held.append(block)

    @rule(block=st.integers(0, BLOCKS - 1))
    def share(self, block):
        if block in self.held:
            self.held.append(self.allocator.share(block))
        else:
            with pytest.raises(ValueError, match="is free"):
                self.allocator.share(block)

    @rule(block=st.integers(0, BLOCKS - 1))
    def release(self, block):
        if block in self.held:
            self.allocator.release(block)
            self.held.remove(block)
        else:
            with pytest.raises(ValueError, match="is free already"):
                self.allocator.release(block)

    @rule(block=st.integers(0, BLOCKS - 1))
    def reclaim(self, block):
        if block in self.held:
            with pytest.raises(ValueError, match="is in use"):
                self.allocator.reclaim(block)
        else:
            self.held.append(self.allocator.reclaim(block))

    @invariant()
    def every_reference_is_counted(self):
        for block in range(self.BLOCKS):
            assert self.allocator.references(block) == self.held.count(block)
        assert self.allocator.used == len(set(self.held))
        assert self.allocator.free == self.BLOCKS - len(set(self.held))


Owners.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
test_no_block_is_lost_or_given_out_twice = Owners.TestCase
