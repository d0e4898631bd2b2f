"""Dropout and normal noise that are the same on any number of ranks: counter-based random numbers.

PyTorch's dropout draws from a generator, so its masks depend on the order of the draws: on ranks,
micro-batches and recomputation. Here each number of a mask is a hash of a counter: the seed, the
step, the layer, the sequence's number in the global batch, the place in the sequence and the
channel. So every process computes the same mask, on a CPU and on a GPU.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", SC11, replace a
generator's state by counters. Their Philox is a better hash. This hash needs only a few integer
operations, which tensors support on every device.

B  sequences in a batch        T  tokens in a sequence        D  channels, the width of a vector
"""

import math

import torch

LOW = 2**32 - 1
START = 0x9E3779B9  # without it, a counter of zeros would hash to zero
MULTIPLIER = 0x045D9F3B  # below 2^31, so that a product with 32 bits never overflows 2^63


def mix(x):
    """Hash whole numbers below 2^32, an int or an int64 tensor. The hash is a bijection.

    Source: T. Mueller's integer hash, https://stackoverflow.com/a/12996028.
    """
    x = ((x >> 16) ^ x) * MULTIPLIER & LOW
    x = ((x >> 16) ^ x) * MULTIPLIER & LOW
    return (x >> 16) ^ x


def counter(*numbers):
    """Hash these numbers, in this order, to one key below 2^32.

    Args:
        numbers: ints, of which the low 64 bits count, or int64 tensors, which are broadcast.
    """
    key = START
    for number in numbers:
        for half in (number & LOW, (number >> 32) & LOW):
            key = mix((key ^ half) + START & LOW)
    return key


def dropout(x: torch.Tensor, rate: float, key: torch.Tensor) -> torch.Tensor:
    """Set each number to zero with probability `rate`, and divide the others by 1 - `rate`.

    Autograd saves the mask: one byte per number.

    Args:
        x: (B, T, D).
        key: (B, T) int64: `counter` of everything that determines the mask, except the channel.

    Source: Srivastava et al. 2014, "Dropout", JMLR 15. This form scales in training, so that
    evaluation needs no dropout at all.
    """
    channels = mix(torch.arange(x.shape[-1], device=x.device) + START & LOW)  # (D,)
    keep = mix(key[..., None] ^ channels) >= round(rate * 2**32)  # (B, T, D) bool
    return x * keep / (1 - rate)


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
    u, v = (u + 1) / 2**32, v / 2**32  # u is in (0, 1]: its logarithm is finite
    return torch.sqrt(-2 * torch.log(u)) * torch.cos(2 * math.pi * v)
