"""Each rank's samples of an epoch, from scratch: the same as torch's `DistributedSampler`."""

import math
from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler


class ShardSampler(Sampler):
    """Give rank r of N the places r, r + N, r + 2N, … of the epoch's order.

    All ranks get the same number of samples, even if N does not divide the number of samples S. By
    default, the order is padded with its own beginning (several times if necessary), and each rank
    gets ceil(S / N) samples. Padded samples occur twice in an epoch, which makes a mean over an
    evaluation set slightly wrong. With `drop_last`, the last S mod N samples are left out, and each
    rank gets floor(S / N); with fewer samples than ranks, that is none.

    All ranks must have the same seed, and call `set_epoch` before each epoch; otherwise every epoch
    has the same order. A run's order depends on N. For an order that does not, use
    `helpers.data.order.Order`.

    Attributes:
        num_samples: a rank's samples in an epoch.
        total_size: N · num_samples.

    Args:
        samples: a dataset (only its length is used), or the number of samples.
        num_replicas: N.
        rank: 0, …, N-1.

    Raises:
        ValueError: no such rank, or a negative number of samples.

    Source: `torch.utils.data.DistributedSampler`, with the same indices.
    """

    def __init__(
        self,
        samples: Sized | int,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        self.samples = samples if isinstance(samples, int) else len(samples)
        if not 0 <= rank < num_replicas:
            raise ValueError(f"there is no rank {rank} of {num_replicas}: ranks count from 0")
        if self.samples < 0:
            raise ValueError(f"the number of samples must not be negative: {self.samples}")
        self.num_replicas, self.rank = num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        rounded = math.floor if drop_last else math.ceil
        self.num_samples = rounded(self.samples / num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        order = self.order()
        return (
            order[place % self.samples]  # after the end, start again
            for place in range(self.rank, self.total_size, self.num_replicas)
        )

    def order(self) -> list[int]:
        """All samples in this epoch's order, the same on every rank."""
        if not self.shuffle:
            return list(range(self.samples))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.samples, generator=generator).tolist()

    def set_epoch(self, epoch: int):
        """Use the order of this epoch from now on."""
        self.epoch = epoch
