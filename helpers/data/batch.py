"""A batch for a training step: tokens, and the tokens that should follow them; or pictures.

B sequences of T tokens each, or B pictures of H × W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch

IGNORED = -100  # a target that the loss ignores: torch's default `ignore_index`


def part(size: int, index: int, parts: int) -> slice:
    """Divide `size` items evenly into `parts` parts, in order; return part `index` as a slice.

    The first `size % parts` parts have one item more. With more parts than items, the last parts
    are empty.

    Raises:
        ValueError: `index` is not one of 0, …, parts-1.
    """
    if not 0 <= index < parts:
        raise ValueError(f"there is no part {index} of {parts}: use 0 to {parts - 1}")
    small, rest = divmod(size, parts)
    start = index * small + min(index, rest)
    return slice(start, start + small + (index < rest))


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Examples for a training step, one per row: what every kind of batch can do.

    Attributes:
        numbers: (B,) int64: each example's number in the global batch, whatever its shard and
            micro-batch; default 0 … B-1. Random numbers (dropout's, a VAE's) depend on it.
        step: the training step, from 0. Random numbers depend on it too.
        TENSORS: the attributes with one row per example.
        EXAMPLES: what the examples are, for errors.

    Raises:
        ValueError: `numbers` is not (B,).
    """

    TENSORS: ClassVar[tuple[str, ...]] = ()
    EXAMPLES: ClassVar[str] = "examples"
    numbers: torch.Tensor | None = None
    step: int = 0

    def __post_init__(self):
        rows = getattr(self, self.TENSORS[0])
        if self.numbers is None:
            numbers = torch.arange(len(rows), device=rows.device)
            object.__setattr__(self, "numbers", numbers)  # the dataclass is frozen
        if self.numbers.shape != rows.shape[:1]:
            raise ValueError(
                f"a batch has {len(rows)} {self.EXAMPLES}, but numbers of shape "
                f"{tuple(self.numbers.shape)}"
            )

    def __len__(self) -> int:
        """B, the number of examples."""
        return len(self.numbers)

    def counted(self) -> int:
        """Count what the loss is a mean over: here the examples.

        Ranks and micro-batches have unequal counts, so weight their means by this count.
        """
        return len(self)

    def rows(self, which: slice) -> Self:
        """Select some of the examples, as views."""
        return self._each(lambda tensor: tensor[which])

    def shard(self, rank: int, world: int) -> Self:
        """Select this rank's examples: part `rank` of `world`, as by `part`."""
        return self.rows(part(len(self), rank, world))

    def micro(self, n: int) -> list[Self]:
        """Cut into `n` micro-batches, by examples.

        The result always has `n` micro-batches, so that all ranks run the same number. With fewer
        than `n` examples, the last are empty.
        """
        return [self.rows(part(len(self), index, n)) for index in range(n)]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Copy the batch to another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def _each(self, change) -> Self:
        names = (*self.TENSORS, "numbers")
        return replace(self, **{name: change(getattr(self, name)) for name in names})


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch(Examples):
    """Tokens and targets. B may be 0, for a rank without data.

    Attributes:
        tokens: (B, T) int64.
        targets: (B, T) int64: the token to predict at each position; IGNORED, -100, for none.
        numbers, step: as for Examples.
        documents: of packed sequences: the lengths of each sequence's documents, in their order. No
            token sees another document's. A rank with some of the tokens has all lengths. None: a
            sequence is one document.

    Raises:
        ValueError: tokens and targets differ in shape or are not (B, T); `numbers` is not (B,);
            documents do not fill the sequences.
    """

    TENSORS: ClassVar = ("tokens", "targets")
    EXAMPLES: ClassVar = "sequences"
    tokens: torch.Tensor
    targets: torch.Tensor
    documents: Sequence[Sequence[int]] | None = None

    def __post_init__(self):
        if self.tokens.ndim != 2 or self.tokens.shape != self.targets.shape:
            raise ValueError(
                "tokens and targets must both be (B, T), not "
                f"{tuple(self.tokens.shape)} and {tuple(self.targets.shape)}"
            )
        super().__post_init__()
        if self.documents is not None:
            documents = tuple(map(tuple, self.documents))
            object.__setattr__(self, "documents", documents)
            sequences, length = self.tokens.shape
            sums = {sum(lengths) for lengths in documents}
            empty = any(n < 1 for lengths in documents for n in lengths)
            short = min(sums, default=length) < length
            if len(documents) != sequences or len(sums) > 1 or empty or short:
                raise ValueError(
                    f"the documents {documents} do not fill {sequences} sequences of {length} "
                    "tokens: name the lengths of each sequence's documents"
                )

    def rows(self, which: slice) -> Self:
        tensors = {name: getattr(self, name)[which] for name in (*self.TENSORS, "numbers")}
        return replace(self, **tensors, documents=self.documents and self.documents[which])

    def located(self) -> dict:
        """What a model's `locate` needs beside the tokens."""
        return {"numbers": self.numbers, "step": self.step, "documents": self.documents}

    def counted(self) -> int:
        """Count the targets that are not IGNORED. The loss is a mean over them."""
        return int((self.targets != IGNORED).sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures(Examples):
    """Pictures. B may be 0, for a rank without data. The loss is a mean over the pictures.

    Attributes:
        images: (B, H, W) float, from 0 to 1.
        numbers, step: as for Examples.

    Raises:
        ValueError: `images` is not (B, H, W); `numbers` is not (B,).
    """

    TENSORS: ClassVar = ("images",)
    EXAMPLES: ClassVar = "pictures"
    images: torch.Tensor

    def __post_init__(self):
        if self.images.ndim != 3:
            raise ValueError(f"images must be (B, H, W), not {tuple(self.images.shape)}")
        super().__post_init__()


def random_batch(
    seed: int, sequences: int, length: int, vocab: int = 256, ignored: float = 0.0
) -> Batch:
    """Make a batch of random tokens, (sequences, length). Each target is the next token.

    A seed always gives the same tokens. A model cannot learn from them; use them for tests and
    measurements.

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
    """Make sequences that repeat a random word. The loss counts only the second copy.

    To predict the copy, a model must look back by length // 2 places. Token 0 separates the two
    copies, and is in no word. The length may be even or odd.

    Raises:
        ValueError: `length` is less than 3, or `vocab` less than 2.
    """
    if length < 3 or vocab < 2:
        raise ValueError(
            f"length {length} or vocab {vocab} is too small to copy a word: use at least 3 and 2"
        )
    generator = torch.Generator().manual_seed(seed)
    word = torch.randint(1, vocab, (sequences, length // 2), generator=generator)
    between = torch.zeros(sequences, 1, dtype=torch.int64)
    stream = torch.cat([word, between, word, between], dim=1)[:, : length + 1]
    targets = stream[:, 1:].clone()
    targets[:, : length // 2] = IGNORED
    return Batch(tokens=stream[:, :-1].clone(), targets=targets)
