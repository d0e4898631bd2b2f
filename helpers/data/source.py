"""Batches for a training loop, from packed blocks in a shuffled order."""

from dataclasses import dataclass, replace

import torch

from helpers.data.batch import Batch, part
from helpers.data.blocks import Blocks
from helpers.data.order import Order


@dataclass(frozen=True)
class Source:
    """Global batches that are the same on any number of ranks. So a run can resume at any batch.

    Attributes:
        blocks: the blocks to read.
        order: assigns blocks to batches.
    """

    blocks: Blocks
    order: Order

    def shard(self, k: int, rank: int = 0, world: int = 1) -> Batch:
        """Read this rank's part of global batch k, and nothing else: (B, T). It may be empty."""
        mine = part(self.order.batch, rank, world)
        batch = self.blocks.batch(self.order.shard(k, rank, world))
        return replace(batch, numbers=torch.arange(mine.start, mine.stop), step=k)


def held_out(blocks: Blocks, sequences: int, batch: int) -> list[Batch]:
    """Read the first `sequences` blocks, not shuffled, in batches: always the same data.

    Raises:
        ValueError: there are fewer blocks.
    """
    if sequences > len(blocks):
        raise ValueError(
            f"{sequences} held-out sequences are too many: there are only {len(blocks)} blocks"
        )
    return [
        blocks.batch(range(first, min(first + batch, sequences)))
        for first in range(0, sequences, batch)
    ]
