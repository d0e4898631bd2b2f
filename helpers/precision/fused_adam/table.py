"""The table that tells a kernel where its tensors are.

A table of pointers, and no flat buffer: a flat buffer would have to own the parameters' memory, but
that belongs to the model (tied weights, views, shards), and autograd puts each gradient where it
likes. Pointers leave every tensor where it is. They cost 64 bytes for a tensor and 8 for a block.
"""

from collections.abc import Callable, Sequence
from functools import partial
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
        uploads: how many times one of them was copied to the device.
    """

    def __init__(self, device: torch.device, block: int):
        self.device, self.block = device, block
        self.uploads, self._last = 0, {}

    def fill(self, hyper: Sequence[float], tensors: Sequence[Tensors]):
        """Write the table. What has not changed since the last call stays on the device."""
        lengths = [own.parameter.numel() for own in tensors]
        self._send("blocks", lengths, partial(blocks, block=self.block))
        self._send("hyper", list(hyper), partial(torch.tensor, dtype=torch.float64))
        self._send("rows", [row(own) for own in tensors], torch.tensor)

    def _send(self, name: str, new: list, make: Callable[[list], torch.Tensor]):
        """Copy a part that has changed: from pinned memory, on the stream of the kernels.

        So the CPU does not wait for the GPU.
        """
        if new != self._last.get(name):
            host = make(new)
            host = host.pin_memory() if self.device.type == "cuda" else host
            setattr(self, name, host.to(self.device, non_blocking=True))
            self._last[name] = new
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
