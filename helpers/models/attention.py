"""Causal self-attention, rotary positions, and the positions of a batch's tokens.

B  sequences in a batch        D  width of a token's vector    H  query heads
T  tokens in a sequence        d  width of a head, D/H         K  key/value heads, K divides H
S  keys per sequence: T, or more with a cache
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from helpers.models.blockwise import blockwise
from helpers.models.caches.cache import BlockCache, Kept, RotaryPart
from helpers.models.shape import GPTShape


@dataclass(frozen=True, kw_only=True, eq=False)
class Positions:
    """The positions of a batch's tokens. A model computes them once and passes them to each block.

    Attributes:
        places: (T,) int64, each token's place in its sequence; (B, T) if the sequences differ. In a
            packed sequence, the place in its document.
        angles: cosine and sine of the rotary angles, (T, d/2) or (B, T, d/2) each, fewer with a
            `rotary_share` below 1; None without rotary positions.
        key: (B, T) int64, dropout's counter without layer and channel; None without dropout.
        documents: the lengths of each packed sequence's documents, as in a Batch.
    """

    places: torch.Tensor
    angles: tuple[torch.Tensor, torch.Tensor] | None
    key: torch.Tensor | None
    documents: Sequence[Sequence[int]] | None = None


class FanOut(nn.Module):
    """Apply several linear modules to one input. A module, so that others can replace it."""

    def forward(self, x: torch.Tensor, *linears: nn.Linear) -> list[torch.Tensor]:
        return [linear(x) for linear in linears]


class Attention(nn.Module):
    """Causal self-attention; H/K query heads share a key/value head (Ainslie et al. 2023)."""

    def __init__(self, config: GPTShape, **place):
        super().__init__()
        self.config, d = config, config.head_width
        place["bias"] = config.bias
        self.fan_out = FanOut()
        self.query = nn.Linear(config.width, config.heads * d, **place)
        self.key = nn.Linear(config.width, config.key_heads * d, **place)
        self.value = nn.Linear(config.width, config.key_heads * d, **place)
        self.core = Core(config.attention)
        self.out = nn.Linear(config.heads * d, config.width, **place)

    @staticmethod
    def kept(config: GPTShape) -> Kept:
        """Say what the block keeps of each token: its keys, rotated, and its values."""
        rotary = None
        if config.positions == "rotary":
            rotary = RotaryPart(width=config.rotary_width, base=config.rotary_base)
        return Kept(per_token=((config.key_heads, config.head_width),) * 2, rotary=rotary)

    def forward(self, x: torch.Tensor, positions: Positions, cache: BlockCache | None = None):
        q, k, v = (
            projected.unflatten(-1, (-1, self.config.head_width))  # (B, T, H or K, d)
            for projected in self.fan_out(x, self.query, self.key, self.value)
        )
        if positions.angles is not None:
            q, k = rotate(q, *positions.angles), rotate(k, *positions.angles)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (B, H or K, T, d)
        if cache is not None:
            y = cache.attend(self.core, q, k, v)
        elif self.config.recompute == "selective" and self.training:
            y = again(self.core, q, k, v, None, positions.documents)
        else:
            y = self.core(q, k, v, None, positions.documents)  # (B, H, T, d)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, D)


class Core(nn.Module):
    """softmax(q kᵀ / √d) v with a causal mask. It has no parameters.

    Args:
        kind: "sdpa", "explicit" or "blockwise", as in the configuration.
    """

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        seen: torch.Tensor | None = None,
        documents: Sequence[Sequence[int]] | None = None,
    ) -> torch.Tensor:
        """Compute (B, H, T, d) from q (B, H, T, d) and k, v (B, K, S, d).

        Args:
            seen: True where a query may see a key; it broadcasts to (B, H, T, S). None: the
                queries are of the last T of the S tokens, and see no later token.
            documents: the lengths of each sequence's documents, which do not see each other; T = S.
        """
        if documents:
            return apart(self, q, k, v, documents)
        if self.kind == "blockwise":
            return blockwise(q, k, v, seen)
        tokens, keys = q.shape[2], k.shape[2]
        shared = q.shape[1] // k.shape[1]
        causal = seen is None and tokens == keys
        alone = seen is None and tokens == 1  # the last token sees all
        if seen is None and (self.kind == "explicit" or not (causal or alone)):
            seen = last_of(tokens, keys, q.device)
        if self.kind == "sdpa":
            return functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, is_causal=causal, enable_gqa=shared > 1
            )
        if shared > 1:
            k, v = (t.repeat_interleave(shared, dim=1) for t in (k, v))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (B, H, T, S): T S numbers a head
        return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v


def apart(core, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, documents) -> torch.Tensor:
    """Let each document of each sequence attend by itself: a document is a whole sequence."""
    sequences = []
    for row, lengths in enumerate(documents):
        spans = [slice(*ends) for ends in pairwise(accumulate(lengths, initial=0))]
        found = [core(*(one[row : row + 1, :, span] for one in (q, k, v))) for span in spans]
        sequences.append(torch.cat(found, 2))
    return torch.cat(sequences)


def last_of(tokens: int, keys: int, device: torch.device) -> torch.Tensor:
    """The mask of queries that are of the last T of the S tokens, (T, S): none sees a later one."""
    return torch.ones(tokens, keys, dtype=torch.bool, device=device).tril(keys - tokens)


class Rotary(nn.Module):
    """A table of every place's rotary angles, shared by all blocks (Su et al. 2021).

    The table is in float64 if the model is, else in float32: bf16 cannot tell place 257 from 256.
    It is recomputed whenever the model is moved or cast, and is not part of a checkpoint.
    """

    def __init__(self, config: GPTShape, dtype: torch.dtype, device):
        super().__init__()
        self.config = config
        for name in ("cos", "sin"):
            shape = (config.context, config.rotary_width // 2)
            table = torch.empty(shape, dtype=dtype, device=device)
            self.register_buffer(name, table, persistent=False)
        self.fill()

    def fill(self):
        config = self.config
        dtype = torch.float64 if self.cos.dtype is torch.float64 else torch.float32
        tables = rotary_table(config.context, config.rotary_width, config.rotary_base)
        self.cos, self.sin = (table.to(self.cos.device, dtype) for table in tables)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.fill()
        return self

    def forward(self, places: torch.Tensor | int) -> tuple[torch.Tensor, torch.Tensor]:
        """Look up cosine and sine of these places, (T, d/2) or (B, T, d/2) each.

        Args:
            places: places in the sequence; an int n means the first n.
        """
        if isinstance(places, int):
            return self.cos[:places], self.sin[:places]
        return self.cos[places], self.sin[places]


def rotary_table(length: int, d: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute cosine and sine of each place's angles, (length, d/2) each, in float64."""
    frequencies = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)  # (d/2,)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (i, i + d/2) of a head by its place's angle: (B, T, heads, d).

    With fewer than d/2 angles, only the first numbers of a head are rotated.

    The dim of heads is after the dim of places. In the other order, the memory layout that `cat`
    gives heads of width 2 makes PyTorch's fused attention fail.
    """
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # ((B,) T, 1, d/2)
    width = 2 * cos.shape[-1]
    turned, *rest = (x,) if width == x.shape[-1] else x.split([width, x.shape[-1] - width], -1)
    first, second = turned.chunk(2, dim=-1)
    both = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([*both, *rest], dim=-1).to(x.dtype)


def again(function, *inputs):
    """Save only the inputs, and recompute the rest in the backward (Chen et al. 2016)."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
