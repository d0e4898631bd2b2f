"""The owner of a fixed number of blocks: which are free, and how many sequences use each other.

Sequences can share a block, so the allocator counts its references. A block is free when the last
reference is released (Kwon et al. 2023, PagedAttention, section 4.4).
"""

from helpers.models.caches.cache import CacheFull


class OutOfBlocks(CacheFull):
    """Too few blocks are free.

    Attributes:
        needed: how many blocks were needed.
        free: how many were free.
    """

    def __init__(self, needed: int, free: int, blocks: int):
        super().__init__(
            f"{needed} more block{'s are' if needed != 1 else ' is'} needed, but {free} of "
            f"{blocks} are free; free a sequence, or make the cache with more blocks"
        )
        self.needed, self.free = needed, free


class BlockAllocator:
    """Give out blocks by their numbers, 0 … blocks - 1, and count the references to each.

    A released block keeps its content until it is allocated again. `allocate` takes the block that
    has been free for the longest time, so `reclaim` finds recent contents.

    Raises:
        ValueError: the number of blocks is negative.
    """

    def __init__(self, blocks: int):
        if blocks < 0:
            raise ValueError(f"the number of blocks is {blocks}; it must be 0 or more")
        self._references = [0] * blocks
        self._free = dict.fromkeys(range(blocks))  # ordered: the first was released first

    @property
    def blocks(self) -> int:
        """All blocks, free or not."""
        return len(self._references)

    @property
    def free(self) -> int:
        """How many blocks are free."""
        return len(self._free)

    @property
    def used(self) -> int:
        """How many blocks have references."""
        return self.blocks - self.free

    def references(self, block: int) -> int:
        """How many references the block has; 0: it is free.

        Raises:
            ValueError: no such block.
        """
        if not 0 <= block < self.blocks:
            raise ValueError(f"no block {block}; the blocks are 0 to {self.blocks - 1}")
        return self._references[block]

    def allocate(self) -> int:
        """Take a free block, with one reference.

        Raises:
            OutOfBlocks: no block is free.
        """
        if not self._free:
            raise OutOfBlocks(1, 0, self.blocks)
        return self.reclaim(next(iter(self._free)))

    def reclaim(self, block: int) -> int:
        """Take this free block, with one reference, for its content.

        Raises:
            ValueError: no such block, or it is in use.
        """
        if self.references(block):
            raise ValueError(f"block {block} is in use; share it, or allocate another one")
        del self._free[block]
        self._references[block] = 1
        return block

    def share(self, block: int) -> int:
        """Add a reference to a block in use.

        Raises:
            ValueError: no such block, or it is free.
        """
        if not self.references(block):
            raise ValueError(f"block {block} is free; only a block in use can be shared")
        self._references[block] += 1
        return block

    def release(self, block: int) -> None:
        """Remove a reference. Without references, the block is free.

        Raises:
            ValueError: no such block, or it is free already.
        """
        if not self.references(block):
            raise ValueError(f"block {block} is free already; release each reference once")
        self._references[block] -= 1
        if not self._references[block]:
            self._free[block] = None
