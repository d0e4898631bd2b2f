"""Packed blocks in a shuffled order: what a training loop asks for batches."""

from dataclasses import dataclass, replace

import torch

from helpers.data.batch import Batch, part
from helpers.data.blocks import Blocks
from helpers.data.order import Order


@dataclass(frozen=True)
class Source:
    """Global batch k is the same on any number of ranks, and so a run can go on from any k.

    Attributes:
        blocks: what is read.
        order: which of them are in which batch.
    """

    blocks: Blocks
    order: Order

    def shard(self, k: int, rank: int = 0, world: int = 1) -> Batch:
        """This rank's part of global batch k: (B, T); only it is read. It may be empty."""
        mine = part(self.order.batch, rank, world)
        batch = self.blocks.batch(self.order.shard(k, rank, world))
        return replace(batch, numbers=torch.arange(mine.start, mine.stop), step=k)


def held_out(blocks: Blocks, sequences: int, batch: int) -> list[Batch]:
    """The first `sequences` blocks as they stand, in batches: to evaluate on, the same each time.

    Raises:
        ValueError: there are not that many.
    """
    if sequences > len(blocks):
        raise ValueError(f"{sequences} held-out sequences, and there are {len(blocks)}")
    return [
        blocks.batch(range(first, min(first + batch, sequences)))
        for first in range(0, sequences, batch)
    ]
