"""What one block keeps of the tokens that it has read: its tensors' shapes, and their bytes."""

import math
from dataclasses import dataclass

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
