"""The memory of a paged cache: one row of numbers for each block of tokens.

N  blocks of tokens        P  slots in a block, one for each token

A row has the block's tokens for **all** blocks of the model. So a copy, or a message to another
rank, is one row.
"""

from collections.abc import Mapping, Sequence

import torch

from helpers.models.caches.kept import Kept


class Store:
    """Allocate the memory of N blocks once.

    Attributes:
        memory: (N, numbers in a block).
        rows: for each block of the model, by its number: a view (N, P, heads, width) of each tensor
            that gets a row for every token. In memory a head's P rows follow each other, because
            attention reads one head after the other.
        starts: where each of these tensors starts in a row of the memory.

    Raises:
        ValueError: a size is out of its range.
    """

    def __init__(self, kept: Mapping[int, Kept], blocks: int, block_size: int, dtype, device):
        if blocks < 0 or block_size < 1:
            raise ValueError(
                f"{blocks} blocks of {block_size} tokens; there must be 0 blocks or more, and "
                "1 token or more in each"
            )
        per_token = sum(h * w for one in kept.values() for h, w in one.per_token)
        self.memory = torch.zeros(blocks, block_size * per_token, dtype=dtype, device=device)
        self.rows: dict[int, list[torch.Tensor]] = {}
        self.starts: dict[int, list[int]] = {}
        start = 0
        for number, one in kept.items():
            self.rows[number], self.starts[number] = [], []
            for heads, width in one.per_token:
                size = block_size * heads * width
                part = self.memory[:, start : start + size].unflatten(1, (heads, block_size, width))
                self.rows[number].append(part.transpose(1, 2))
                self.starts[number].append(start)
                start += size

    @property
    def bytes(self) -> int:
        return self.memory.nbytes

    @property
    def block_bytes(self) -> int:
        """The bytes of one block of tokens, for all blocks of the model."""
        return self.memory.shape[1] * self.memory.dtype.itemsize

    def clear(self, blocks: Sequence[int]) -> None:
        """Fill blocks with zeros.

        A slot that no token has is read too, with a weight of 0. A NaN of an earlier sequence would
        remain: 0 NaN = NaN.
        """
        if blocks:
            self.memory.index_fill_(0, self.index(blocks), 0)

    def copy(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Copy each old block into the new block."""
        if old:
            self.memory.index_copy_(
                0, self.index(new), self.memory.index_select(0, self.index(old))
            )

    def index(self, blocks: Sequence) -> torch.Tensor:
        """Make an index tensor of block numbers."""
        return torch.tensor(blocks, dtype=torch.int64, device=self.memory.device)
