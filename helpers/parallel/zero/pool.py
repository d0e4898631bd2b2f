"""Memory for rows that exist only for a part of a step."""

import torch

from helpers.comm.transport import GroupTransport


class Pool:
    """Lend buffers. Ordinary memory is freed after use; a transport's own memory is lent again.

    Args:
        largest: numbers in the largest buffer. A transport that cannot free memory gets buffers of
            this size, so that few of them fit all rows.
    """

    def __init__(self, transport: GroupTransport, largest: int):
        self.transport, self.largest = transport, largest
        self.free: dict[torch.dtype, list[torch.Tensor]] = {}
        self.lent: dict[int, torch.Tensor] = {}  # address -> the whole buffer

    def take(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Lend a buffer: (numel,), with arbitrary content."""
        if not self.transport.lasting:
            return self.transport.empty(numel, dtype, device)
        free = self.free.setdefault(dtype, [])
        buffer = free.pop() if free else self.transport.empty(self.largest, dtype, device)
        self.lent[buffer.data_ptr()] = buffer
        return buffer[:numel]

    def give(self, buffer: torch.Tensor):
        """Take a buffer back."""
        if self.transport.lasting:
            self.free[buffer.dtype].append(self.lent.pop(buffer.data_ptr()))

    @property
    def buffers(self) -> list[torch.Tensor]:
        """All memory that lasts."""
        return [*(b for same in self.free.values() for b in same), *self.lent.values()]
