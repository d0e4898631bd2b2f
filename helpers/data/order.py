"""Which samples are in which global batch, the same on any number of ranks.

A pure function of the seed and the batch's number. So there is nothing to save: a run that stops
after batch k goes on with batch k+1, on as many ranks as there are then, and sees the samples that
it would have seen.
"""

from dataclasses import dataclass

import numpy as np
import torch

from helpers.data.batch import part

ROUNDS = 8
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Order:
    """Samples 0 … samples-1 in an order shuffled anew each epoch, cut into global batches.

    The epochs stand in one endless row, and global batch k is places k·batch … (k+1)·batch - 1 of
    it. So every batch is full, each epoch holds every sample once, and a batch may end one epoch
    and begin the next (where a sample can then stand twice).

    Nothing is stored: `sample` computes who stands at a place, so a billion samples cost as little
    as ten. See `shuffled`.

    Attributes:
        samples: how many there are.
        batch: samples in a global batch, of all ranks together.
        seed: another seed, another order.
        shuffle: False leaves the samples as they stand.

    Raises:
        ValueError: no samples, or a batch of none.
    """

    samples: int
    batch: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self):
        if self.samples < 1 or self.batch < 1:
            raise ValueError(
                f"samples and batch must be at least 1: they are {self.samples} and {self.batch}"
            )

    def global_batch(self, k: int) -> torch.Tensor:
        """The samples of global batch k, from 0: (batch,) int64."""
        return self._places(k, slice(0, self.batch))

    def shard(self, k: int, rank: int, world: int) -> torch.Tensor:
        """Those of them that this rank gets; only they are computed.

        The ranks' shards in rank order are global batch k. Where `world` does not divide the batch,
        the first ranks get one more; with fewer samples than ranks, the last get none.
        """
        return self._places(k, part(self.batch, rank, world))

    def epoch(self, k: int) -> int:
        """The epoch in which global batch k begins, from 0."""
        return k * self.batch // self.samples

    def _places(self, k: int, which: slice) -> torch.Tensor:
        if k < 0:
            raise ValueError(f"global batches count from 0: {k}")
        first = k * self.batch
        places = np.arange(first + which.start, first + which.stop, dtype=np.int64)
        epochs, places = np.divmod(places, self.samples)
        if self.shuffle:
            for epoch in np.unique(epochs):  # one or two, but for tiny sets
                here = epochs == epoch
                places[here] = shuffled(places[here], self.samples, self.seed, int(epoch))
        return torch.from_numpy(places)


def shuffled(places: np.ndarray, samples: int, seed: int, epoch: int) -> np.ndarray:
    """Who stands at these places of a shuffle of 0 … samples-1: int64, as many as `places`.

    The shuffle is computed place by place: a Feistel network, which is a permutation of the 4^b
    numbers of 2b bits, whatever its round function. The least 4^b that is at least `samples` is
    taken, and who falls outside goes through again until he is inside (cycle walking): at most 4
    times on average. A shuffle by sorting, `torch.randperm`, would hold all of them, 8 bytes each.

    Source: Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom
    functions", SIAM J. Comput. 17(2), 1988; cycle walking: Black and Rogaway, "Ciphers with
    arbitrary finite domains", CT-RSA 2002, section 3 (there: "cycle-walking cipher").
    """
    bits = max(1, -(-(samples - 1).bit_length() // 2))  # of a half
    keys = np.random.SeedSequence([int(seed) & _MASK, epoch]).generate_state(ROUNDS, np.uint64)
    out = places.astype(np.uint64)
    walking = np.ones(len(out), dtype=bool)
    while walking.any():
        out[walking] = _feistel(out[walking], np.uint64(bits), keys)
        walking = out >= samples
    return out.astype(np.int64)


def _feistel(numbers: np.ndarray, bits: np.uint64, keys: np.ndarray) -> np.ndarray:
    """One pass of the network over numbers of 2·bits bits: a permutation of them."""
    low = (np.uint64(1) << bits) - np.uint64(1)
    left, right = numbers >> bits, numbers & low
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & low)
    return (left << bits) | right


def _mix(numbers: np.ndarray) -> np.ndarray:
    """Scatter 64-bit numbers: the finalizer of MurmurHash3 (Appleby), which is public domain."""
    for factor in (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)):
        numbers = (numbers ^ (numbers >> np.uint64(33))) * factor
    return numbers ^ (numbers >> np.uint64(33))
