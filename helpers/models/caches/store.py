"""The memory of a paged cache, and how attention reads it.

N  blocks of tokens        P  slots in a block, one for each token
B  sequences               M  blocks to read of each

The memory has one row of numbers for each block of tokens, for **all** blocks of the model. So a
copy, or a message to another rank, is one row.

PyTorch's attention wants a sequence's rows in order, so each step copies them. The copies of all
blocks of the model use the same workspace: new memory for each would cost more than the copy,
because the system maps it page by page. A kernel that follows the table itself needs no copy
(Kwon et al. 2023, section 5.1).
"""

from collections.abc import Mapping, Sequence

import torch

from helpers.models.caches.cache import Kept


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


class Workspace:
    """Memory that is used again and again. It grows as needed."""

    def __init__(self):
        self._tensors: dict[int, torch.Tensor] = {}

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def take(self, number: int, numbers: int, like: torch.Tensor) -> torch.Tensor:
        """Return the workspace with this number, (numbers,) with anything in it."""
        old = self._tensors.get(number)
        if old is None or len(old) < numbers:
            self._tensors[number] = old = like.new_empty(numbers)
        return old[:numbers]


class Gather:
    """Read the same blocks for one block of the model after the other.

    Args:
        table: (B, M), block numbers.
    """

    def __init__(self, store: Store, workspace: Workspace, table: torch.Tensor):
        self.store, self.workspace, self.table = store, workspace, table
        self._indices: dict[tuple[int, int], torch.Tensor] = {}

    def __call__(self, number: int) -> list[torch.Tensor]:
        """Return (B, heads, M P, width) of each tensor of the model's block `number`.

        The next call overwrites them.
        """
        pairs = zip(self.store.rows[number], self.store.starts[number], strict=True)
        return [self.read(i, rows, start) for i, (rows, start) in enumerate(pairs)]

    def read(self, which: int, rows: torch.Tensor, start: int) -> torch.Tensor:
        (sequences, most), (_, slots, heads, width) = self.table.shape, rows.shape
        line = slots * width  # a head's rows in a block
        row = self.store.memory.shape[1]
        found = self.workspace.take(which, self.table.numel() * heads * line, rows)
        if row % line or start % line:  # tensors of different widths: a block cannot be cut evenly
            blocks = rows[self.table]  # (B, M, P, heads, width)
            found = found.view(sequences, heads, most, slots, width)
            found.copy_(blocks.permute(0, 3, 1, 2, 4))
        else:
            lines = self.store.memory.view(-1, line)[start // line :]
            index = self.index(heads, row // line)
            torch.index_select(lines, 0, index, out=found.view(-1, line))
        return found.view(sequences, heads, most * slots, width)

    def index(self, heads: int, lines: int) -> torch.Tensor:
        """The lines to read, (B heads M,): of the first sequence's first head, and so on.

        Args:
            lines: how many a block has.
        """
        if (heads, lines) not in self._indices:
            head = torch.arange(heads, device=self.table.device)[:, None]
            self._indices[heads, lines] = (self.table[:, None] * lines + head).flatten()
        return self._indices[heads, lines]
