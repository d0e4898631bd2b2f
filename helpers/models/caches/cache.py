"""What a cache promises to a model, what a model promises to a cache, and what a block keeps.

B  sequences in a batch        T  new tokens per sequence, the longest; others are padded right
S  keys per sequence that the new tokens may see, at most

A model's forward with a cache is: `begin`, then each block's `attend` or `read` and `write`, then
`end`. If a forward fails between them, the cache still has the tokens of before.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, kw_only=True)
class RotaryPart:
    """Which numbers of keys and queries are rotated by their place (Su et al. 2021).

    Attributes:
        tensor: which tensor of `Kept.per_token` has the keys.
        key: the first rotated number in a row of that tensor.
        query: the first rotated number in a head of the queries.
        width: how many numbers are rotated.
        base: of the frequencies.
    """

    width: int
    base: float
    tensor: int = 0
    key: int = 0
    query: int = 0


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The tensors that one block keeps for one sequence.

    Attributes:
        per_token: (heads, width) of each tensor that gets a row for every token. Attention keeps
            keys and values: ((K, d), (K, d)).
        per_sequence: the shape of each tensor that does not grow: a recurrent block's state.
        rotary: what is rotated; None without rotary positions.
    """

    per_token: tuple[tuple[int, int], ...] = ()
    per_sequence: tuple[tuple[int, ...], ...] = ()
    rotary: RotaryPart | None = None

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Count the bytes by which a block's cache grows with each token of a sequence."""
        return sum(heads * width for heads, width in self.per_token) * dtype.itemsize

    def bytes_per_sequence(self, dtype: torch.dtype) -> int:
        """Count the bytes that a block keeps for a sequence of any length."""
        return sum(math.prod(shape) for shape in self.per_sequence) * dtype.itemsize


class BlockCache(Protocol):
    """One block's part of a cache. A mixer uses `attend`, or `read` and `write`.

    Attributes:
        counts: how many of the T new tokens of each sequence are real; None: all.
    """

    counts: Sequence[int] | None

    def attend(self, core: Callable, q: torch.Tensor, *new: torch.Tensor) -> torch.Tensor:
        """Append the new rows, and compute core(q, *all rows so far, seen).

        Args:
            core: attention's arithmetic: core(q, k, v, seen) returns (B, H, T, d). `seen` is a
                mask that broadcasts to (B, H, T, S), True where a query may see a key. None means:
                the queries are of the last T of the S tokens, and see no later token.
            q: (B, H, T, d).
            new: (B, heads, T, width) each, in the order of `Kept.per_token`.
        """

    def read(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors of fixed size, (B, *shape) each, in the order of `Kept.per_sequence`.

        A new sequence's tensors are zero.
        """

    def write(self, *states: torch.Tensor) -> None:
        """Replace the tensors of fixed size by (B, *shape) each."""


class Cache(Protocol):
    """What a model, or a stage of it, keeps of the tokens that it has read.

    Attributes:
        lengths: the tokens of each sequence so far, on the host.
        blocks: each block's part, by the block's number in the whole model.
        bytes: what the cache's tensors occupy, in bytes.
    """

    lengths: Sequence[int]
    blocks: Mapping[int, BlockCache]

    @property
    def bytes(self) -> int: ...

    def begin(self, tokens: int, counts: Sequence[int] | None = None) -> torch.Tensor:
        """Make room for T new tokens of each sequence, and return their places, (T,) or (B, T).

        Args:
            tokens: T.
            counts: how many of the T are real in each sequence, 0 to T; None: all.

        Raises:
            CacheFull: there is no room. The cache is as before.
        """

    def end(self) -> None:
        """Count the new tokens as read."""

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget each sequence's tokens from this length on.

        Raises:
            ValueError: a sequence has fewer tokens, or a block's state cannot be rewound.
        """


class CacheFull(RuntimeError):
    """The cache has no room for the new tokens."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A slot has room for one token, in all blocks of the model.

    Attributes:
        slots: all slots.
        reserved: the slots that belong to a sequence, so that no other one can use them.
        used: those of them that have a token. A shared slot counts once.
        tokens: the tokens of all sequences. A shared slot counts for each of its sequences.
    """

    slots: int
    reserved: int
    used: int
    tokens: int

    @property
    def wasted(self) -> int:
        """The slots that belong to a sequence, but have no token."""
        return self.reserved - self.used

    @property
    def saved(self) -> int:
        """The slots that sharing saves."""
        return self.tokens - self.used
