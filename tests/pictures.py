"""Pictures from which nothing can be learnt."""

import torch

from helpers.data.batch import Pictures


def random_pictures(seed: int, count: int, side: int = 8) -> Pictures:
    """Make a batch of random grey values: (count, side, side). A seed always gives the same."""
    generator = torch.Generator().manual_seed(seed)
    return Pictures(images=torch.rand(count, side, side, generator=generator))
