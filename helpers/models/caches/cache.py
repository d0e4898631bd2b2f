"""What a cache promises to a model, and what a model promises to a cache.

B  sequences in a batch        T  new tokens per sequence, the longest; others are padded right
S  keys per sequence that the new tokens may see, at most

A model's forward with a cache is: `begin`, then each block's `attend` or `read` and `write`, then
`end`. If a forward fails between them, the cache still has the tokens of before.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch


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
