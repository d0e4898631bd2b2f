"""What a training step gets: tokens, and the tokens that should follow them.

B sequences, T tokens each.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch

IGNORED = -100  # a target that the loss leaves out: torch's own `ignore_index`


def part(size: int, index: int, parts: int) -> slice:
    """The `index`-th of `parts` parts of `size` things in a row, as equal as can be.

    Put together in order they are all of them. The first `size % parts` are larger by 1; with more
    parts than things, the last are empty.

    Raises:
        ValueError: `index` is not one of 0, …, parts-1.
    """
    if not 0 <= index < parts:
        raise ValueError(f"there is no part {index} of {parts}: they count from 0 to {parts - 1}")
    small, rest = divmod(size, parts)
    start = index * small + min(index, rest)
    return slice(start, start + small + (index < rest))


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Tokens and targets. A batch of no sequences is one too: that of a rank with no data.

    Attributes:
        tokens: (B, T) int64.
        targets: (B, T) int64: the token to foretell at each position; IGNORED, -100, where none is.
        numbers: (B,) int64: each sequence's number in the global batch, whatever shard and
            micro-batch it is in. Dropout goes by it. 0 … B-1 if not given.
        step: of the training, from 0. Dropout goes by it, too.

    Raises:
        ValueError: tokens and targets differ in shape or are not (B, T); not B numbers.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    numbers: torch.Tensor | None = None
    step: int = 0

    def __post_init__(self):
        if self.tokens.ndim != 2 or self.tokens.shape != self.targets.shape:
            raise ValueError(
                "tokens and targets must both be (B, T): they are "
                f"{tuple(self.tokens.shape)} and {tuple(self.targets.shape)}"
            )
        if self.numbers is None:
            numbers = torch.arange(len(self.tokens), device=self.tokens.device)
            object.__setattr__(self, "numbers", numbers)  # the dataclass is frozen
        if self.numbers.shape != self.tokens.shape[:1]:
            raise ValueError(f"{len(self.tokens)} sequences, and {len(self.numbers)} numbers")

    def __len__(self) -> int:
        """B, the number of sequences."""
        return len(self.tokens)

    def counted(self) -> int:
        """How many targets the loss is a mean over: those that are not IGNORED.

        Means over ranks or micro-batches must be weighted by it: they hold unequal numbers.
        """
        return int((self.targets != IGNORED).sum())

    def rows(self, which: slice) -> Self:
        """Some of the sequences, as views."""
        cut = {name: getattr(self, name)[which] for name in ("tokens", "targets", "numbers")}
        return replace(self, **cut)

    def shard(self, rank: int, world: int) -> Self:
        """This rank's sequences: the `rank`-th of `world` parts, as `part` cuts them."""
        return self.rows(part(len(self), rank, world))

    def micro(self, n: int) -> list[Self]:
        """Cut into `n` micro-batches, by sequences.

        Always `n`, so that ranks with unequal shards go through equally many. With fewer than `n`
        sequences the last are empty.
        """
        return [self.rows(part(len(self), index, n)) for index in range(n)]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same on another device."""
        moved = {
            name: getattr(self, name).to(device, non_blocking=non_blocking)
            for name in ("tokens", "targets", "numbers")
        }
        return replace(self, **moved)


def random_batch(
    seed: int, sequences: int, length: int, vocab: int = 256, ignored: float = 0.0
) -> Batch:
    """Random tokens, each the target of the one before: (sequences, length). The same for a seed.

    Nothing can be learnt from them but themselves: for tests and for measuring.

    Args:
        ignored: the probability, from 0 to 1, that a target is IGNORED.
    """
    generator = torch.Generator().manual_seed(seed)
    stream = torch.randint(vocab, (sequences, length + 1), generator=generator)
    targets = stream[:, 1:].clone()
    if ignored:
        targets[torch.rand(targets.shape, generator=generator) < ignored] = IGNORED
    return Batch(tokens=stream[:, :-1].clone(), targets=targets)


def copying_batch(seed: int, sequences: int, length: int, vocab: int = 256) -> Batch:
    """Sequences that say the same random word twice; the loss counts the second time alone.

    A model must look back to foretell the copy, by length // 2 places. 0 stands between the two,
    and is in no word. Even and odd lengths are fine, from 3 on.

    Raises:
        ValueError: `length` is less than 3, or `vocab` less than 2.
    """
    if length < 3 or vocab < 2:
        raise ValueError(f"nothing can be copied: length {length}, vocab {vocab}")
    generator = torch.Generator().manual_seed(seed)
    word = torch.randint(1, vocab, (sequences, length // 2), generator=generator)
    between = torch.zeros(sequences, 1, dtype=torch.int64)
    stream = torch.cat([word, between, word, between], dim=1)[:, : length + 1]
    targets = stream[:, 1:].clone()
    targets[:, : length // 2] = IGNORED
    return Batch(tokens=stream[:, :-1].clone(), targets=targets)
