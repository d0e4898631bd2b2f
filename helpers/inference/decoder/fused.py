"""A model's forward with any cache, on the weights arranged for decoding.

B  sequences                   S  keys per sequence            H  query heads
T  new tokens per sequence     d  width of a head              K  key/value heads
R  rows: one for each token    D  width of a token's vector    F  inner width of the MLP
"""

import math
from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention, silu

from helpers.inference.decoder.weights import BlockWeights, Weights
from helpers.models.attention import last_of
from helpers.models.caches.cache import Cache
from helpers.models.gpt import GPT, begin


class Fused:
    """Call it like the model, with a cache: `fused(tokens, cache=cache, counts=counts)`.

    The logits are the model's own, up to rounding. Dropout does not apply. The model and `Fused`
    cannot continue each other's caches: here a key's pairs are neighbours. A cache that rotates
    keys again has to know this order. A cache has to copy the rows that it gets, because all blocks
    share one buffer.

    Raises:
        ValueError: the decoder cannot run this model.
    """

    def __init__(self, model: GPT):
        self.weights, self.config = Weights.of(model), model.config
        self._rows: Rows | None = None

    @torch.inference_mode()
    def __call__(
        self, tokens: torch.Tensor, cache: Cache, counts: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Compute logits (B, T, V) from tokens (B, T). Arguments and errors are those of `GPT`."""
        sequences, length = tokens.shape
        places = begin(cache, length, counts, self.config.context)
        angles = self.weights.angles[places]  # ((B,) T, 1, d/2)
        angles = angles.expand(sequences, length, 1, -1).flatten(0, 1)
        rows, core = self._buffers(sequences * length), Core()
        rows.embed(tokens.flatten())
        q = rows.queries.flatten(1, 2).unflatten(0, tokens.shape).transpose(1, 2)  # (B, H, T, d)
        k, v = (t.unflatten(0, tokens.shape).transpose(1, 2) for t in (rows.keys, rows.values))
        for number, block in enumerate(self.weights.blocks):
            rows.project(block, angles)
            y = cache.blocks[number].attend(core, q, k, v)  # (B, H, T, d)
            rows.finish(block, y.transpose(1, 2).flatten(2).flatten(0, 1))
        cache.end()
        return rows.logits().unflatten(0, tokens.shape)

    def _buffers(self, rows: int) -> "Rows":
        """Keep the last buffers: steps in a row often have the same size."""
        if self._rows is None or len(self._rows.hidden) != rows:
            self._rows = Rows(self.weights, rows)
        return self._rows


class Core:
    """softmax(q kᵀ) v, with queries that are already divided by √d; as `BlockCache.attend` asks.

    All blocks of a step have the same mask. So the mask's other form is made only once.
    """

    def __init__(self):
        self._seen: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        seen: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute (B, H, T, d) from q (B, H, T, d) and k, v (B, K, S, d)."""
        if q.shape[2] == 1 and k.stride(0) == k.shape[1] * k.stride(1):  # else views are copies
            bias = None if seen is None else self._as_bias(seen, q, k)
            grouped = q.reshape(len(q) * k.shape[1], -1, q.shape[3])  # (B K, H/K, d)
            y = attend_one(grouped, k.flatten(0, 1), v.flatten(0, 1), bias)
            return y.view(q.shape)
        tokens, keys = q.shape[2], k.shape[2]
        causal = seen is None and tokens == keys
        if seen is None and not causal:
            seen = last_of(tokens, keys, q.device)
        shared = q.shape[1] > k.shape[1]
        return scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=causal, scale=1.0, enable_gqa=shared
        )

    def _as_bias(self, seen: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Turn the mask (B, 1, 1, S) into 0 and -inf, (B K, 1, S)."""
        if self._seen is not seen:
            bias = torch.where(seen, 0.0, float("-inf")).to(q.dtype)
            bias = bias.expand(len(k), k.shape[1], 1, -1).flatten(0, 1)
            self._seen, self._bias = seen, bias
        return self._bias


def attend_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None):
    """Compute softmax(q kᵀ + bias) v for one new token: two products, without tiles of keys.

    Args:
        q: (B K, H/K, d).
        k, v: (B K, S, d); views of a longer cache are fine.
        bias: (B K, 1, S), -inf for a key that is not seen; None: all are seen.
    """
    k = k.transpose(1, 2)
    scores = torch.bmm(q, k) if bias is None else torch.baddbmm(bias, q, k)  # (B K, H/K, S)
    return torch.bmm(torch.softmax(scores, -1), v)


class Rows:
    """R token vectors, and all that a block does but attention.

    Use: `embed`; for each block `project`, then attention by the caller, then `finish`; `logits`.
    Call it without gradients: it writes in place.

    Attributes:
        queries: (R, K, H/K, d), a view of what `project` computed; pairs are neighbours.
        keys, values: (R, K, d) each, likewise.
    """

    def __init__(self, weights: Weights, rows: int):
        self.weights, config = weights, weights.config
        width, inner = config.width, config.inner
        heads, key_heads, d = config.heads, config.key_heads, config.head_width
        new = weights.embedding.new_empty
        # One more column, √(D ε): the root of all squares is then √D times the norm's divisor.
        self._longer = new(rows, width + 1)
        self._longer[:, width] = math.sqrt(width * config.norm_eps)
        self.hidden = self._longer[:, :width]
        self._root, self._normed = new(rows, 1), new(rows, width)
        self._qkv = new(rows, (heads + 2 * key_heads) * d)
        rotated = self._qkv[:, : (heads + key_heads) * d].unflatten(1, (-1, d // 2, 2))
        self._pairs = torch.view_as_complex(rotated)  # (R, H + K, d/2)
        self.queries = self._qkv[:, : heads * d].unflatten(1, (key_heads, -1, d))
        self.keys, self.values = self._qkv[:, heads * d :].unflatten(1, (2, key_heads, d)).unbind(1)
        self._gate_up = new(rows, 2 * inner)
        self._gate, self._up = self._gate_up[:, :inner], self._gate_up[:, inner:]

    def embed(self, tokens: torch.Tensor):
        """Begin with the vectors of tokens (R,)."""
        self.hidden.copy_(self.weights.embedding[tokens])

    def norm(self) -> torch.Tensor:
        """Divide each row by the root of its squares' sum, plus D ε. The matrices hold the rest."""
        torch.linalg.vector_norm(self._longer, dim=1, keepdim=True, out=self._root)
        return torch.div(self.hidden, self._root, out=self._normed)

    def project(self, block: BlockWeights, angles: torch.Tensor):
        """Compute queries, keys and values, and rotate queries and keys by their place's angles.

        Args:
            angles: complex, (R, 1, d/2), or (1, d/2) if all rows are at the same place.
        """
        torch.mm(self.norm(), block.qkv, out=self._qkv)
        self._pairs.mul_(angles)

    def finish(self, block: BlockWeights, attended: torch.Tensor):
        """Add attention's output, from `attended` (R, H d), then the MLP's."""
        self.hidden.addmm_(attended, block.out)
        torch.mm(self.norm(), block.gate_up, out=self._gate_up)
        silu(self._gate, inplace=True).mul_(self._up)
        self.hidden.addmm_(self._gate, block.down)

    def logits(self) -> torch.Tensor:
        """Compute the logits, (R, V)."""
        return self.norm() @ self.weights.head
