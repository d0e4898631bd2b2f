"""A model as a table: each row is a function of step.c, with its sizes, offsets and weights.

A sequence has a frame: all numbers that pass from row to row. Blocks use the same part of it.

D  width of a token's vector     E  channels of a Mamba block     N  columns of a strip
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import nn

from helpers.measure.kernels.address import address
from helpers.models.attention import Attention
from helpers.models.convolution import Convolution
from helpers.models.gpt import GPT
from helpers.models.mamba import Mamba
from helpers.models.mamba2 import Mamba2
from helpers.models.mlp import SwiGLU

ALLOWED = {  # models that the rows can express
    "norm": ("rms",),
    "positions": ("rotary", "none"),
    "mixers": ("attention", "mamba", "mamba2"),
    "mlp": ("swiglu", "none"),
    "experts": (None,),
}
HIDDEN = 0  # the offset of the hidden numbers in a frame


class Row(ctypes.Structure):
    """`struct row` of step.c."""

    _fields_ = (
        ("run", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in ("x", "y", "z", "v", "kept")),
        ("size", ctypes.c_long * 4),
        ("weights", ctypes.c_void_p * 2),
        ("epsilon", ctypes.c_double),
    )


class Table:
    """The rows of a model's step, with a copy of its weights.

    Attributes:
        rows: for `step`, in order.
        frame: how many numbers a frame has.
        logits: where they begin in a frame.
    """

    @torch.no_grad()
    def __init__(self, model: GPT, library: ctypes.CDLL):
        c = self.config = model.config
        self.library, self.columns, self.weights, rows = library, library.strip(), [], []
        self._rows, self._kept, self._end, self.frame = rows, 0, 0, 0
        self.angles = (model.rotary.cos, model.rotary.sin) if c.positions == "rotary" else ()
        self.place(c.width)  # HIDDEN
        self.normed = self.place(c.width)
        self.row("embed", size=[c.width], weights=[model.embedding.weight])
        start = self._end
        for block in model.blocks.values():
            for name in (block.kind, "mlp")[: 1 if c.mlp == "none" else 2]:
                self._end, part = start, getattr(block, name)
                PARTS[type(part)](self, part, getattr(block, f"{name}_norm"))
        self._end = start
        self.logits = self.project(model.norm, model.head)
        self.rows = (Row * len(rows))(*rows)

    def place(self, width: int) -> int:
        """Reserve a part of the frame, in whole strips. Return its offset."""
        offset = self._end
        self._end += -(-width // self.columns) * self.columns
        self.frame = max(self.frame, self._end)
        return offset

    def row(self, run: str, x=HIDDEN, y=HIDDEN, z=0, v=0, *, size, weights=(), epsilon=0.0, kept=0):
        """Append a row. Its next `kept` tensors of the cache follow those of the rows before."""
        copies = [w.detach().clone(memory_format=torch.contiguous_format) for w in weights]
        self.weights += copies  # the row has their addresses alone
        run = ctypes.cast(self.library[run], ctypes.c_void_p)
        self._rows.append(
            Row(run, x, y, z, v, self._kept, tuple(size), tuple(map(address, copies)), epsilon)
        )
        self._kept += kept

    def project(self, norm: nn.RMSNorm, *linears: nn.Linear) -> int:
        """Norm the hidden numbers, and multiply them. Return the offset of the columns."""
        scale = self.norm(HIDDEN, self.normed, norm.weight)
        return self.product(self.normed, *linears, scale=scale)

    def norm(self, x: int, y: int, scale: torch.Tensor, groups: int = 1) -> torch.Tensor:
        """Divide each group by the root of its sum of squares. Return what is left to multiply."""
        width = len(scale) // groups
        self.row("norm", x, y, size=(width, groups), epsilon=width * self.config.norm_eps)
        return scale * width**0.5

    def product(self, x: int, *linears: nn.Linear, scale=1.0, y: int | None = None) -> int:
        """Multiply by matrices side by side, inputs scaled. Return the offset of the columns.

        Args:
            y: add to the columns there. None: write to a new place.
        """
        matrix = torch.cat([linear.weight for linear in linears]) * scale  # (out, in)
        bias = [m.weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in linears]
        strips = in_strips(torch.cat([torch.cat(bias)[None], matrix.t()]), self.columns)
        to = self.place(len(matrix)) if y is None else y
        size = matrix.shape[1], len(matrix), y is not None
        self.row("product", x, to, size=size, weights=[strips])
        return to

    def convolve(self, x: int, y: int, *convolutions: Convolution):
        """Convolve channels side by side."""
        for one in convolutions:
            channels, taps = one.weight.shape
            lines = torch.cat([one.bias[None], one.weight.t()])
            self.row("convolve", x, y, size=(channels, taps), weights=[lines], kept=1)
            x, y = x + channels, y + channels


def attention(table: Table, mixer: Attention, norm: nn.RMSNorm):
    c, pairs = table.config, table.angles[0].shape[1] if table.angles else 0
    qkv = table.project(norm, mixer.query, mixer.key, mixer.value)
    y, size = table.place(c.heads * c.head_width), (c.heads, c.key_heads, pairs)
    table.row("attend", qkv, y, size=size, weights=table.angles, kept=2)
    table.product(y, mixer.out, y=HIDDEN)


def mamba(table: Table, mixer: Mamba, norm: nn.RMSNorm):
    channels, state = mixer.A_log.shape  # E, S
    x = table.project(norm, mixer.inner, mixer.gate)
    u = table.place(channels)
    table.convolve(x, u, mixer.convolution)
    low = table.product(u, mixer.rank, mixer.B, mixer.C)
    delta, B = table.product(low, mixer.delta), low + len(mixer.rank.weight)
    weights, size = (-mixer.A_log.exp(), mixer.skip), (channels, 1, state, 1)
    table.row("scan", u, x, delta, B, size=size, weights=weights, kept=1)
    table.row("gate", x + channels, x, x, size=[channels])
    table.product(x, mixer.out, y=HIDDEN)


def mamba2(table: Table, mixer: Mamba2, norm: nn.RMSNorm):
    s, heads, channels = mixer.settings, len(mixer.A_log), len(mixer.inner.weight)
    x = table.project(norm, mixer.inner, mixer.B, mixer.C, mixer.gate, mixer.delta)
    gate = x + channels + 2 * s.groups * s.state
    u = table.place(gate - x)
    table.convolve(x, u, mixer.convolution, mixer.convolution_B, mixer.convolution_C)
    decays, size = -mixer.A_log.exp()[:, None], (heads, s.head, s.state, s.groups)
    weights = decays.expand(-1, s.state), mixer.skip
    table.row("scan", u, x, gate + channels, u + channels, size=size, weights=weights, kept=1)
    table.row("gate", gate, x, x, size=[channels])
    scale = table.norm(x, x, mixer.gated_norm.weight, s.groups)
    table.product(x, mixer.out, scale=scale, y=HIDDEN)


def swiglu(table: Table, mlp: SwiGLU, norm: nn.RMSNorm):
    width = table.config.inner
    gate = table.project(norm, mlp.gate, mlp.up)
    table.row("gate", gate, gate, gate + width, size=[width])
    table.product(gate, mlp.down, y=HIDDEN)


PARTS = {Attention: attention, Mamba: mamba, Mamba2: mamba2, SwiGLU: swiglu}


def in_strips(matrix: torch.Tensor, columns: int) -> torch.Tensor:
    """Cut (in, out) into strips of N columns, one after the other in memory: (strips, in, N).

    The last strip is filled with zeros.
    """
    padded = nn.functional.pad(matrix, (0, -matrix.shape[1] % columns))
    return padded.unflatten(1, (-1, columns)).transpose(0, 1).contiguous()


def pointers(tensors: Sequence[torch.Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*map(address, tensors))
