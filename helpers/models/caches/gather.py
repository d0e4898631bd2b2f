"""Read the blocks of several sequences into tensors as attention needs them.

B  sequences        M  blocks to read of each        P  slots in a block        N  all blocks

PyTorch's attention wants a sequence's rows in order, so each step copies them. The copies of all
blocks of the model use the same workspace: new memory for each would cost more than the copy,
because the system maps it page by page. A kernel that follows the table itself needs no copy
(Kwon et al. 2023, section 5.1).
"""

import torch

from helpers.models.caches.store import Store


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
