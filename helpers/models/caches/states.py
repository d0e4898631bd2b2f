"""The tensors of fixed size of many sequences: a recurrent block's states, in lines.

R  lines; a sequence has one while it lives
"""

from collections.abc import Mapping, Sequence

import torch

from helpers.models.caches.cache import Kept


class States:
    """Keep one line for each sequence. The memory doubles when all lines are in use.

    Attributes:
        tensors: for each block of the model, by its number: (R, *shape) of each state.
    """

    def __init__(self, kept: Mapping[int, Kept], dtype, device):
        self.tensors = {
            number: [torch.zeros(0, *s, dtype=dtype, device=device) for s in one.per_sequence]
            for number, one in kept.items()
        }
        self._lines = 0
        self._free: list[int] = []

    def __bool__(self):
        """Whether the model has any state of fixed size."""
        return any(self.tensors.values())

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for tensors in self.tensors.values() for t in tensors)

    def take(self) -> int:
        """Take a line of zeros, and return its number."""
        if not self._free:
            self.grow()
        line = self._free.pop()
        for tensors in self.tensors.values():
            for tensor in tensors:
                tensor[line] = 0
        return line

    def grow(self):
        more = max(self._lines, 1)
        for tensors in self.tensors.values():
            for index, old in enumerate(tensors):
                tensors[index] = torch.cat([old, old.new_zeros(more, *old.shape[1:])])
        self._free = list(reversed(range(self._lines, self._lines + more)))
        self._lines += more

    def copy(self, line: int) -> int:
        """Take a line with the states of another one."""
        new = self.take()
        for tensors in self.tensors.values():
            for tensor in tensors:
                tensor[new] = tensor[line]
        return new

    def give_back(self, line: int) -> None:
        self._free.append(line)

    def read(self, number: int, lines: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the states of these lines, (B, *shape) each, for one block of the model."""
        return tuple(tensor.index_select(0, lines) for tensor in self.tensors[number])

    def write(self, number: int, lines: torch.Tensor, states: Sequence[torch.Tensor]) -> None:
        for tensor, new in zip(self.tensors[number], states, strict=True):
            tensor.index_copy_(0, lines, new.to(tensor.dtype))
