"""Dropout whose masks depend on where a number stands, and not on which process draws it when.

A usual dropout draws from a generator, so its masks depend on the order of the draws: on the ranks,
on the micro-batches, on what is computed twice. Here each number of a mask is a hash of a counter:
the seed, the step, the layer, the sequence's number in the global batch, the place in the sequence
and the channel. Whoever holds that number gets the same bit, on a CPU and on a GPU.

Source: counters in place of a generator's state are Salmon et al. 2011, "Parallel random numbers:
as easy as 1, 2, 3", SC11. Their Philox hashes better; this hash takes a few integer operations that
tensors have everywhere.

B  sequences in a batch        T  tokens in a sequence        D  channels, the width of a vector
"""

import torch

LOW = 2**32 - 1
START = 0x9E3779B9  # else a counter of zeros would hash to zero
MULTIPLIER = 0x045D9F3B  # below 2^31: a product with 32 bits stays below 2^63, and never overflows


def mix(x):
    """Scatter whole numbers below 2^32, an int or an int64 tensor: a bijection of them.

    Source: T. Mueller's integer hash, https://stackoverflow.com/a/12996028.
    """
    x = ((x >> 16) ^ x) * MULTIPLIER & LOW
    x = ((x >> 16) ^ x) * MULTIPLIER & LOW
    return (x >> 16) ^ x


def counter(*numbers):
    """One key below 2^32 for these numbers, in this order.

    Args:
        numbers: ints or int64 tensors, which are broadcast; of each the low 64 bits count.
    """
    key = START
    for number in numbers:
        for half in (number & LOW, (number >> 32) & LOW):
            key = mix((key ^ half) + START & LOW)
    return key


def dropout(x: torch.Tensor, rate: float, key: torch.Tensor) -> torch.Tensor:
    """Set each number to zero with probability `rate`, and divide the others by 1 - `rate`.

    Autograd keeps the mask, one byte a number.

    Args:
        x: (B, T, D).
        key: (B, T) int64: `counter` of all that the mask depends on but the channel.

    Source: Srivastava et al. 2014, "Dropout", JMLR 15; scaled in training, so that evaluation
    leaves x as it is.
    """
    channels = mix(torch.arange(x.shape[-1], device=x.device) + START & LOW)  # (D,)
    keep = mix(key[..., None] ^ channels) >= round(rate * 2**32)  # (B, T, D) bool
    return x * keep / (1 - rate)
