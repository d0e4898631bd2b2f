"""Batches of pictures for a training loop: the digits in a shuffled order, or random pictures."""

from dataclasses import dataclass

import torch

from helpers.data.batch import Pictures, part
from helpers.data.order import Order


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


def random_pictures(seed: int, count: int, side: int = 8) -> Pictures:
    """Make a batch of random grey values: (count, side, side). A seed always gives the same.

    A model cannot learn from them; use them for tests and measurements.
    """
    generator = torch.Generator().manual_seed(seed)
    return Pictures(images=torch.rand(count, side, side, generator=generator))
