"""Assign samples to global batches, in the same way on any number of ranks.

The assignment is a pure function of the seed and the batch's number. So a checkpoint does not need
it: a run that stops after batch k continues with batch k+1, on any number of ranks, with the same
samples as without the stop.
"""

from dataclasses import dataclass

import numpy as np
import torch

from helpers.data.batch import part

ROUNDS = 8
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Order:
    """Samples 0 … samples-1, shuffled again in each epoch, and cut into global batches.

    The epochs follow each other in one endless sequence, and global batch k is its places k·batch …
    (k+1)·batch - 1. So every batch is full, and each epoch contains every sample once. A batch may
    contain the end of one epoch and the start of the next; then a sample can occur twice in it.

    The order is computed, not stored, so a billion samples cost as little as ten. See `shuffled`.

    Attributes:
        samples: the number of samples.
        batch: samples in a global batch, over all ranks.
        seed: determines the order.
        shuffle: False keeps the samples in their own order.

    Raises:
        ValueError: `samples` or `batch` is below 1.
    """

    samples: int
    batch: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self):
        if self.samples < 1 or self.batch < 1:
            raise ValueError(
                f"samples and batch must be at least 1, not {self.samples} and {self.batch}"
            )

    def global_batch(self, k: int) -> torch.Tensor:
        """The samples of global batch k, from 0: (batch,) int64."""
        return self._places(k, slice(0, self.batch))

    def shard(self, k: int, rank: int, world: int) -> torch.Tensor:
        """Compute this rank's samples of global batch k, and no others.

        Together, in rank order, the shards are global batch k. If `world` does not divide the
        batch, the first ranks get one sample more. With fewer samples than ranks, the last ranks
        get none.
        """
        return self._places(k, part(self.batch, rank, world))

    def epoch(self, k: int) -> int:
        """The epoch in which global batch k begins, from 0."""
        return k * self.batch // self.samples

    def _places(self, k: int, which: slice) -> torch.Tensor:
        if k < 0:
            raise ValueError(f"global batches count from 0, so there is no batch {k}")
        first = k * self.batch
        places = np.arange(first + which.start, first + which.stop, dtype=np.int64)
        epochs, places = np.divmod(places, self.samples)
        if self.shuffle:
            for epoch in np.unique(epochs):  # one or two epochs, except for tiny data sets
                here = epochs == epoch
                places[here] = shuffled(places[here], self.samples, self.seed, int(epoch))
        return torch.from_numpy(places)


def shuffled(places: np.ndarray, samples: int, seed: int, epoch: int) -> np.ndarray:
    """Compute the samples at these places of a shuffle of 0 … samples-1: int64, like `places`.

    The shuffle is computed place by place, with a Feistel network. That is a permutation of the 4^b
    numbers of 2b bits, whatever its round function. The function uses the smallest 4^b that is at
    least `samples`. A result outside 0 … samples-1 passes through the network again until it is
    inside (cycle walking): at most 4 passes on average. `torch.randperm` would need memory for all
    samples, 8 bytes each.

    Source: Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom
    functions", SIAM J. Comput. 17(2), 1988; cycle walking: Black and Rogaway, "Ciphers with
    arbitrary finite domains", CT-RSA 2002, section 3 (there: "cycle-walking cipher").
    """
    bits = max(1, -(-(samples - 1).bit_length() // 2))  # bits in each half of a number
    keys = np.random.SeedSequence([int(seed) & _MASK, epoch]).generate_state(ROUNDS, np.uint64)
    out = places.astype(np.uint64)
    walking = np.ones(len(out), dtype=bool)
    while walking.any():
        out[walking] = _feistel(out[walking], np.uint64(bits), keys)
        walking = out >= samples
    return out.astype(np.int64)


def _feistel(numbers: np.ndarray, bits: np.uint64, keys: np.ndarray) -> np.ndarray:
    """Run one pass of the network over numbers of 2·bits bits: a permutation."""
    low = (np.uint64(1) << bits) - np.uint64(1)
    left, right = numbers >> bits, numbers & low
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & low)
    return (left << bits) | right


def _mix(numbers: np.ndarray) -> np.ndarray:
    """Hash 64-bit numbers, with the finalizer of MurmurHash3 (Appleby, public domain)."""
    for factor in (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)):
        numbers = (numbers ^ (numbers >> np.uint64(33))) * factor
    return numbers ^ (numbers >> np.uint64(33))
