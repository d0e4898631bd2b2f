"""A compiled decoding step: one function in C, no operator to start, each weight read in a stream.

It computes what `Fused` computes with PyTorch's operators for one new token, on one thread of a
CPU. It reads and writes the rows of a preallocated cache, so either can continue the other's.

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

from helpers.inference.decoder.fused import Fused
from helpers.measure.kernels.address import address
from helpers.models.caches.preallocated import Preallocated
from helpers.models.gpt import GPT, begin

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


class Compiled(Fused):
    """`Fused`, whose steps of one token are one function in C. It reads a copy of the weights.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
        ValueError: the decoder cannot run this model, or it is not on the CPU.
    """

    def __init__(self, model: GPT):
        super().__init__(model)
        weights, c = self.weights, self.config
        if weights.embedding.device.type != "cpu":
            raise ValueError(
                f"the compiled step runs on the CPU, not on {weights.embedding.device}"
            )
        self._library = library(weights.embedding.dtype, c.head_width)
        self._columns = columns = self._library.strip()
        self._strips = [in_strips(m, columns) for b in weights.blocks for m in vars(b).values()]
        self._head = in_strips(weights.head, columns)
        self._angles = torch.view_as_real(weights.angles).contiguous()  # (context, 1, d/2, 2)
        self._work = weights.embedding.new_empty(0)

    @torch.inference_mode()
    def __call__(
        self, tokens: torch.Tensor, cache: Preallocated, counts: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Compute logits (B, T, V) from tokens (B, T); in C, if T is 1 and all are real.

        Raises:
            ValueError: the step is in C, but the cache's rows are not of the weights' numbers, or a
                token is not in the vocabulary; or as for `Fused`.
        """
        if tokens.shape[1] != 1 or counts is not None:
            return super().__call__(tokens, cache, counts)
        c, embedding = self.config, self.weights.embedding
        low, high = (int(t) for t in tokens.aminmax())
        if low < 0 or high >= c.vocab:
            raise ValueError(f"tokens from {low} to {high}, but the vocabulary has {c.vocab}")
        places = begin(cache, 1, None, c.context).expand(len(tokens), -1).contiguous()
        rows = [one for number in range(c.layers) for one in cache.blocks[number].rows]
        if rows[0].dtype != embedding.dtype:
            raise ValueError(f"weights in {embedding.dtype}, but a cache in {rows[0].dtype}")
        # hidden, normed, attended, qkv, gate and up; each row has room for a whole last strip
        numbers = 3 * c.width + (c.heads + 2 * c.key_heads) * c.head_width + 2 * c.inner
        numbers = len(tokens) * (numbers + 5 * self._columns) + c.context + self._columns
        if len(self._work) < numbers:
            self._work = embedding.new_empty(numbers)
        sizes = (c.width, c.heads, c.key_heads, c.head_width, c.inner, c.vocab)
        shape = Shape(c.layers, len(tokens), *sizes, c.width * c.norm_eps)
        tokens, logits = tokens.contiguous(), embedding.new_empty(len(tokens), c.vocab)
        self._library.step(
            ctypes.byref(shape),
            pointer(tokens),
            pointer(places),
            ctypes.c_long(rows[0].shape[2]),
            pointer(self._angles),
            pointer(embedding),
            pointers(self._strips),
            pointer(self._head),
            pointers(rows),
            pointer(self._work),
            pointer(logits),
        )
        cache.end()
        return logits[:, None]


def in_strips(matrix: torch.Tensor, columns: int) -> torch.Tensor:
    """Cut (in, out) into strips of N columns, one after the other in memory: (strips, in, N).

    The last strip is filled with zeros.
    """
    padded = torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % columns))
    return padded.unflatten(1, (-1, columns)).transpose(0, 1).contiguous()


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(address(tensor))


def pointers(tensors: Sequence[torch.Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*map(address, tensors))
