"""Normal random numbers that are the same on any number of ranks.

Like the masks of `dropout`, each number is a function of a counter: the seed, the step, the
example's number in the global batch, and the channel. It does not depend on the order of the draws.
"""

import math

import torch

from helpers.models.dropout import LOW, START, mix

RANGE = 2**32  # hashes are below it


def normal(key: torch.Tensor, channels: int) -> torch.Tensor:
    """Make standard normal numbers: (B, channels) float64.

    Two hashes make two uniform numbers u and v, and √(-2 ln u) cos(2π v) is normal.

    Args:
        key: (B,) int64: `counter` of everything that determines the numbers, except the channel.

    Source: Box and Muller 1958, "A note on the generation of random normal deviates", Annals of
    Mathematical Statistics 29(2).
    """
    pairs = torch.arange(2 * channels, device=key.device).view(2, channels)
    u, v = (mix(key[:, None] ^ mix(row + START & LOW)).double() for row in pairs)
    u, v = (u + 1) / RANGE, v / RANGE  # u is in (0, 1]: its logarithm is finite
    return torch.sqrt(-2 * torch.log(u)) * torch.cos(2 * math.pi * v)
