"""One step of the decoder as one function in C: no operator to start, each weight read in a stream.

The lesson of a compiled step without a GPU: it computes what `Decoder.step` computes with
PyTorch's operators, on one thread of a CPU.

D  width of a token's vector    H  query heads            d  width of a head
F  inner width of the MLP       K  key/value heads        V  different tokens
N  columns of a strip: two vector registers               B  sequences
"""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from helpers.inference.decoder.slots import Slots
from helpers.inference.decoder.weights import Weights

SOURCE = Path(__file__).with_name("step.c")
# Sums in any order, so that the compiler can use vectors. NaN and infinity keep their meaning.
SUMS = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno")
OPTIONS = ("-O3", "-march=native", *SUMS, "-shared", "-fPIC")
REAL = {torch.float32: "float", torch.float64: "double"}


@cache
def library(dtype: torch.dtype, head_width: int) -> ctypes.CDLL:
    """Compile step.c for this CPU, these numbers, and heads of this width.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("no C compiler named cc: install gcc or clang")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "step.so")
        command = [
            compiler,
            *OPTIONS,
            f"-DREAL={REAL[dtype]}",
            f"-DHEAD={head_width}",
            SOURCE,
            "-o",
            made,
            "-lm",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{compiler} could not compile {SOURCE.name}:\n{done.stderr}")
        loaded = ctypes.CDLL(str(made))
    loaded.strip.restype = ctypes.c_long
    loaded.step.restype = None
    return loaded


class Shape(ctypes.Structure):
    """The sizes in `struct shape` of step.c. All are whole numbers, but the last."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("layers", "sequences", "width", "heads")),
        *((name, ctypes.c_long) for name in ("kv_heads", "head_width", "inner", "vocab")),
        ("epsilon", ctypes.c_double),
    )


class CompiledStep:
    """A step on a second copy of the weights, in strips.

    Args:
        weights: of a model on the CPU.
        sequences: B.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
        ValueError: the weights are not on the CPU.
    """

    def __init__(self, weights: Weights, sequences: int):
        embedding, config = weights.embedding, weights.config
        if embedding.device.type != "cpu":
            raise ValueError(f"the compiled step runs on the CPU, not on {embedding.device}")
        self._library = library(embedding.dtype, config.head_width)
        self._weights, columns = weights, self._library.strip()
        blocks = weights.blocks
        self._strips = [
            [in_strips(matrix, columns) for matrix in (b.qkv, b.out, b.gate_up, b.down)]
            for b in blocks
        ]
        self._head = in_strips(weights.head, columns)
        self._matrices = pointers([t for block in self._strips for t in block])
        self._angles = torch.view_as_real(weights.angles).contiguous()  # (context, 1, d/2, 2)
        heads = config.heads + 2 * config.key_heads
        # hidden, normed, attended, qkv, gate and up; each row has room for a whole last strip
        numbers = 3 * config.width + heads * config.head_width + 2 * config.inner
        scores = config.context
        self._work = embedding.new_empty(sequences * (numbers + 5 * columns) + scores + columns)
        self._shape = Shape(
            config.layers,
            sequences,
            config.width,
            config.heads,
            config.key_heads,
            config.head_width,
            config.inner,
            config.vocab,
            config.width * config.norm_eps,
        )

    @property
    def bytes(self) -> int:
        """The bytes of the strips and of the working memory."""
        every = [t for block in self._strips for t in block]
        return sum(t.nbytes for t in (self._head, self._angles, self._work, *every))

    def __call__(
        self, tokens: torch.Tensor, slots: Slots, slot: int, start: torch.Tensor | None
    ) -> torch.Tensor:
        """Read tokens (B,), int64, into this slot. Returns the logits (B, V).

        Args:
            start: (B,), int64: each sequence's first slot; None: all 0.

        Raises:
            ValueError: a token is not in the vocabulary.
        """
        embedding, config = self._weights.embedding, self._weights.config
        low, high = (int(t) for t in tokens.aminmax())
        if low < 0 or high >= config.vocab:
            raise ValueError(f"tokens from {low} to {high}, but the vocabulary has {config.vocab}")
        tokens = tokens.contiguous()
        logits = embedding.new_empty(len(tokens), config.vocab)
        self._library.step(
            ctypes.byref(self._shape),
            pointer(tokens),
            None if start is None else pointer(start),
            ctypes.c_long(slot),
            ctypes.c_long(slots.width),
            pointer(self._angles),
            pointer(embedding),
            self._matrices,
            pointer(self._head),
            pointers(slots.rows),
            pointer(self._work),
            pointer(logits),
        )
        return logits


def in_strips(matrix: torch.Tensor, columns: int) -> torch.Tensor:
    """Cut (in, out) into strips of N columns, one after the other in memory: (strips, in, N).

    The last strip is filled with zeros.
    """
    padded = torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % columns))
    return padded.unflatten(1, (-1, columns)).transpose(0, 1).contiguous()


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def pointers(tensors: Sequence[torch.Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
