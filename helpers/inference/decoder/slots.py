"""The decoder's cache: keys and values of all blocks, without gaps between heads.

A step reads every key and value once. A processor reads ahead in long runs of memory. Room for
later tokens behind each head's rows would end each run, and the next run would start slowly. So a
head has as many slots as are in use, rounded up. When they are full, all rows move apart.

B  sequences        K  key/value heads        C  capacity, the most slots per sequence
W  slots per sequence now, at most C          d  width of a head
"""

import math

import torch

from helpers.models.config import GPTConfig

STEP = 32  # slots that are added at once: a copy of all rows for every 32 steps


class Slots:
    """Keys and values in slots 0 … W-1 of each sequence. A slot that is not used holds zeros.

    Args:
        capacity: C.
        like: a tensor with the dtype and the device.

    Attributes:
        width: W.
        rows: (2, B, K, W, d) of each block: keys, then values.
        keys, values: (B K, W, d) of each block; views of `rows`, in one run of memory.
    """

    def __init__(self, config: GPTConfig, sequences: int, capacity: int, like: torch.Tensor):
        self.capacity = capacity
        self._shape = (2, sequences, config.key_heads, config.head_width)
        size = math.prod(self._shape) * capacity
        # One more than blocks: rows move from one buffer into the spare one.
        self._buffers = [like.new_empty(size) for _ in range(config.layers + 1)]
        self.clear(0)

    @property
    def bytes(self) -> int:
        """The bytes of all buffers, used or not."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def clear(self, slots: int):
        """Have at least this many slots, all of them zero."""
        self._arrange(min(-(-slots // STEP) * STEP, self.capacity))
        for rows in self.rows:
            rows.zero_()

    def widen(self):
        """Add slots. Those that are there keep their rows; the new ones are zero."""
        width, wider = self.width, min(self.width + STEP, self.capacity)
        for number, rows in enumerate(self.rows):
            spare = self._buffers[-1]
            moved = self._view(spare, wider)
            moved[..., :width, :] = rows
            moved[..., width:, :] = 0
            self._buffers[number], self._buffers[-1] = spare, self._buffers[number]
        self._arrange(wider)

    def forget(self, slots: int):
        """Make all slots from this number on zero."""
        for rows in self.rows:
            rows[..., slots:, :] = 0

    def _arrange(self, width: int):
        self.width = width
        self.rows = [self._view(buffer, width) for buffer in self._buffers[:-1]]
        self.keys = [rows[0].flatten(0, 1) for rows in self.rows]
        self.values = [rows[1].flatten(0, 1) for rows in self.rows]

    def _view(self, buffer: torch.Tensor, width: int) -> torch.Tensor:
        kinds, sequences, heads, d = self._shape
        shape = (kinds, sequences, heads, width, d)
        return buffer[: math.prod(shape)].view(shape)
