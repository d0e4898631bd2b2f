"""Each rank's samples of an epoch, from scratch: what torch's `DistributedSampler` gives."""

import math
from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler


class ShardSampler(Sampler):
    """Rank r gets places r, r + N, r + 2N, … of the epoch's order, of N ranks: all equally many.

    Where N does not divide the number of samples S, either the order is padded with its own
    beginning, again and again if need be, so that ceil(S / N) are a rank's; or, with `drop_last`,
    the last S mod N of the order are left out, and floor(S / N) are. Padded samples are seen twice
    in an epoch: a mean over an evaluation set is then off. With fewer samples than ranks
    `drop_last` leaves none for anyone.

    All ranks must have the same seed, and call `set_epoch` before each epoch: else it is the same
    order again. The order of a run depends on N; one that does not is `helpers.data.order.Order`.

    Attributes:
        num_samples: of a rank in an epoch.
        total_size: of all ranks, N times that.

    Args:
        samples: a dataset, of which only the length counts, or the number of samples.
        num_replicas: N.
        rank: of 0, …, N-1.

    Raises:
        ValueError: no such rank, or a number of samples below 0.

    Source: `torch.utils.data.DistributedSampler`, whose every index this gives.
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
            raise ValueError(f"no rank {rank} of {num_replicas}: they count from 0")
        if self.samples < 0:
            raise ValueError(f"a number of samples below 0: {self.samples}")
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
            order[place % self.samples]  # beyond the end: from the beginning again
            for place in range(self.rank, self.total_size, self.num_replicas)
        )

    def order(self) -> list[int]:
        """All samples in this epoch's order, the same on every rank."""
        if not self.shuffle:
            return list(range(self.samples))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.samples, generator=generator).tolist()

    def set_epoch(self, epoch: int):
        """From here on the order of this epoch."""
        self.epoch = epoch
