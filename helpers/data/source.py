"""Batches for a training loop, in a shuffled order: of packed blocks of text, or of pictures."""

from dataclasses import dataclass, replace

import torch

from helpers.data.batch import Batch, Pictures, part
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


@dataclass(frozen=True, eq=False)
class PictureSource:
    """Global batches of pictures that are the same on any number of ranks.

        images, labels = tensors(digits())
        source = PictureSource(images, Order(len(images), batch=64))

    Attributes:
        images: (n, H, W) float, from 0 to 1: all pictures.
        order: assigns pictures to batches.

    Raises:
        ValueError: the order is for another number of pictures.
    """

    images: torch.Tensor
    order: Order

    def __post_init__(self):
        if self.order.samples != len(self.images):
            raise ValueError(
                f"{len(self.images)} pictures, but the order is for {self.order.samples}"
            )

    def shard(self, k: int, rank: int = 0, world: int = 1) -> Pictures:
        """This rank's part of global batch k: (B, H, W). It may be empty."""
        mine = part(self.order.batch, rank, world)
        images = self.images[self.order.shard(k, rank, world)]
        return Pictures(images=images, numbers=torch.arange(mine.start, mine.stop), step=k)


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
