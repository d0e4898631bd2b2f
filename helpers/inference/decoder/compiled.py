"""A compiled decoding step: one function in C, no operator to start, each weight read in a stream.

It computes what the model computes for one new token, on one thread of a CPU. It reads and writes
the tensors of a preallocated cache, so the model and the step can continue each other's.

B  sequences        V  different tokens
"""

import copy
import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from helpers.inference.decoder.table import ALLOWED, Table, pointers
from helpers.inference.decoder.weights import check
from helpers.measure.kernels.address import address
from helpers.measure.kernels.in_c import loaded
from helpers.models.caches.cache import Cache
from helpers.models.caches.preallocated import Growing, Preallocated
from helpers.models.gpt import GPT, begin

SOURCE = Path(__file__).with_name("step.c")
# Sums in any order, so that the compiler can use vectors. NaN and infinity keep their meaning.
SUMS = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno")
REAL = {torch.float32: "float", torch.float64: "double"}


class Step(ctypes.Structure):
    """`struct step` of step.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("sequences", "frame", "slots", "vocab", "done")),
        *((name, ctypes.POINTER(ctypes.c_long)) for name in ("tokens", "places")),
        ("kept", ctypes.POINTER(ctypes.c_void_p)),
        *((name, ctypes.c_void_p) for name in ("frames", "scratch")),
    )


@cache
def library(dtype: torch.dtype, head_width: int) -> ctypes.CDLL:
    """Compile step.c for this CPU, these numbers, and heads of this width.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
    """
    sizes = f"-DREAL={REAL[dtype]}", f"-DHEAD={head_width}"
    made = loaded(SOURCE.read_text(encoding="utf-8"), SOURCE.name, *SUMS, *sizes)
    made.strip.restype = ctypes.c_long
    made.step.restype = None
    return made


class Compiled:
    """A model, whose steps of one token are one function in C. It has a copy of the weights.

    Call it like the model, with a cache. Prompts, steps with `counts`, and caches that are not
    preallocated go through the model's own operators.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
        ValueError: the step cannot run this model, or it is not on the CPU.
    """

    def __init__(self, model: GPT):
        check(model, ALLOWED)
        weight = model.embedding.weight
        if weight.device.type != "cpu":
            raise ValueError(f"the compiled step runs on the CPU, not on {weight.device}")
        self.config, self.model = model.config, copy.deepcopy(model).eval().requires_grad_(False)
        self._library = library(weight.dtype, self.config.head_width)
        self._table = Table(self.model, self._library)
        self._frames = weight.new_empty(0, self._table.frame)
        states = (self.config.mamba.state, self.config.mamba2.state)
        self._scratch = weight.new_empty(max(self.config.context, *states))

    @torch.no_grad()
    def __call__(
        self, tokens: torch.Tensor, cache: Cache, counts: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Compute logits (B, T, V) from tokens (B, T); in C, if T is 1 and all are real.

        Raises:
            ValueError: the step is in C, but the cache is of other numbers or of fewer sequences,
                or a token is not in the vocabulary; or as for the model. The cache is as before.
        """
        if tokens.shape[1] != 1 or counts is not None or type(cache) not in (Preallocated, Growing):
            return self.model(tokens, cache=cache, counts=counts)
        c, table, frames, ids = self.config, self._table, self._frames, tokens.flatten().tolist()
        begin(cache, 1, None, c.context)
        blocks = (cache.blocks[number] for number in range(c.layers))
        kept = [tensor for block in blocks for tensor in (*block.rows, *block.states)]
        if (kept[0].dtype, len(kept[0])) != (frames.dtype, len(ids)):
            raise ValueError(
                f"{len(ids)} sequences in {frames.dtype}, but a cache of {len(kept[0])} in "
                f"{kept[0].dtype}"
            )
        if len(frames) < len(ids):
            frames = self._frames = frames.new_empty(len(ids), table.frame)
        numbers = ctypes.c_long * len(ids)
        step = Step(len(ids), table.frame, cache.capacity, c.vocab)
        step.tokens, step.places, step.kept = numbers(*ids), numbers(*cache.lengths), pointers(kept)
        step.frames, step.scratch = address(frames), address(self._scratch)
        try:
            self._library.step(table.rows, ctypes.c_long(len(table.rows)), ctypes.byref(step))
        finally:  # an interrupt arrives after the step, when the states have changed
            if step.done:
                cache.end()
        if not step.done:
            raise ValueError(
                f"tokens from {min(ids)} to {max(ids)}, but the vocabulary has {c.vocab}"
            )
        return frames[: len(ids), None, table.logits : table.logits + c.vocab].clone()
