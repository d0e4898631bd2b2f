"""A cache in int8: a quarter of the bytes of float32, for a small error.

B  sequences in a batch        T  new tokens per sequence        C  capacity, slots per sequence
"""

from collections.abc import Callable

import torch

from helpers.models.caches.cache import Kept
from helpers.models.caches.preallocated import Preallocated, Slots

LARGEST = 127  # of int8; -128 is not used, so the range is symmetric


class Quantised(Preallocated):
    """Keep each row as int8 numbers, and one float32 scale for each token and head.

    A number is off by at most half a step: its row's largest absolute value / 254. States of fixed
    size are kept in `dtype`, as they are: their errors would add up from token to token. Arguments
    as for `Preallocated`.
    """

    def make_block(self, one: Kept, *shape_and_place) -> Slots:
        return Int8Slots(one, *shape_and_place)


class Int8Slots(Slots):
    """One block's rows, (B, heads, C, width) in int8, and their scales (B, heads, C, 1)."""

    def __init__(self, kept: Kept, sequences: int, capacity: int, dtype, device):
        super().__init__(kept, sequences, 0, dtype, device)
        shapes = [(sequences, heads, capacity, width) for heads, width in kept.per_token]
        self.rows = [torch.zeros(shape, dtype=torch.int8, device=device) for shape in shapes]
        self.scales = [torch.zeros(*shape[:3], 1, device=device) for shape in shapes]

    @property
    def bytes(self) -> int:
        return super().bytes + sum(scales.nbytes for scales in self.scales)

    def attend(self, core: Callable, q: torch.Tensor, *new: torch.Tensor) -> torch.Tensor:
        length, every = self.step.length, []
        for rows, scales, more in zip(self.rows, self.scales, new, strict=True):
            for kept, part in zip((rows, scales), quantise(more), strict=True):
                self.place(kept, part)
            every.append(restore(rows[:, :, :length], scales[:, :, :length]).to(q.dtype))
        return core(q, *every, self.step.seen)


def quantise(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows (…, width) to int8 numbers (…, width) times a float32 scale (…, 1).

    A row with a NaN gets a scale of NaN, so the error stays visible.
    """
    largest = rows.abs().amax(-1, keepdim=True)
    scale = torch.where(largest == 0, 1, largest / LARGEST).float()
    steps = (rows / scale).round().nan_to_num().clamp(-LARGEST, LARGEST)
    return steps.to(torch.int8), scale


def restore(numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Compute the float32 rows that `quantise` has rounded."""
    return numbers * scale
