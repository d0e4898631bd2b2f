"""The table that tells a kernel where its tensors are.

A table of pointers, and no flat buffer: a flat buffer would have to own the parameters' memory, but
that belongs to the model (tied weights, views, shards), and autograd puts each gradient where it
likes. Pointers leave every tensor where it is. They cost 64 bytes for a tensor and 8 for a block.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

WORDS = 8  # 64-bit words of a row: six pointers, the length, and 1 if the row is aligned
ALIGNMENT = 16  # bytes: the kernel's widest load has 128 bits


class Tensors(NamedTuple):
    """The tensors of one parameter, of one shape and one layout; `step` is one number."""

    parameter: torch.Tensor
    gradient: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    step: torch.Tensor
    low: torch.Tensor | None = None


class Table:
    """Rows and blocks for one launch, on the device of the tensors.

    Attributes:
        rows: int64, (tensors, 8).
        hyper: float64, (8,): the numbers of the group.
        blocks: int32, (programs, 2): the row of the tensor, and the block's number in the tensor.
        uploads: how many times rows and hyper were copied to the device.
    """

    def __init__(self, device: torch.device, block: int):
        self.device, self.block = device, block
        self.uploads = 0
        self._lengths, self._words = None, None

    def fill(self, hyper: Sequence[float], tensors: Sequence[Tensors]):
        """Write the table. What has not changed since the last call stays on the device.

        A copy from pinned memory, on the stream of the kernels: the CPU does not wait for the GPU.
        """
        lengths = [own.parameter.numel() for own in tensors]
        pinned = self.device.type == "cuda"
        if lengths != self._lengths:
            host = blocks(lengths, self.block)
            host = host.pin_memory() if pinned else host
            self.blocks = host.to(self.device, non_blocking=True)
            self._lengths = lengths
        words = (list(hyper), [word for own in tensors for word in row(own)])
        if words != self._words:
            host = torch.empty(WORDS * (1 + len(tensors)), dtype=torch.int64, pin_memory=pinned)
            host[:WORDS].view(torch.float64)[:] = torch.tensor(words[0], dtype=torch.float64)
            host[WORDS:] = torch.tensor(words[1])
            whole = host.to(self.device, non_blocking=True)
            self.hyper = whole[:WORDS].view(torch.float64)
            self.rows = whole[WORDS:].view(-1, WORDS)
            self._words = words
            self.uploads += 1


def row(tensors: Tensors) -> list[int]:
    """The words of a row. A step needs no alignment: it is loaded as one number."""
    p, g, m, v, _, low = pointers = [0 if own is None else own.data_ptr() for own in tensors]
    return [*pointers, tensors.parameter.numel(), int((p | g | m | v | low) % ALIGNMENT == 0)]


def is_aligned(tensors: Tensors) -> bool:
    """Whether loads and stores of 128 bits may begin at the first number of each tensor."""
    return bool(row(tensors)[-1])


def blocks(lengths: Sequence[int], block: int) -> torch.Tensor:
    """Divide tensors into blocks: int32, (programs, 2); an empty tensor has no block."""
    counts = torch.tensor([-(-length // block) for length in lengths], dtype=torch.int64)
    index = torch.arange(len(counts)).repeat_interleave(counts)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)  # of the tensor's programs
    return torch.stack([index, torch.arange(len(index)) - first], dim=1).int()


def arranged(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Give tensors of one shape one dense layout: then number i of each is at place i in memory.

    Most tensors are contiguous and stay as they are. A tensor in another layout than the first
    (a transposed gradient, a column of a matrix) becomes a copy.
    """
    if all(map(torch.Tensor.is_contiguous, tensors)):
        return tensors
    strides = torch.empty_like(tensors[0], device="meta").stride()  # dense, in the same order
    return [
        tensor
        if tensor.stride() == strides
        else tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)
        for tensor in tensors
    ]
