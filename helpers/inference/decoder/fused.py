"""A model's forward with any cache, on the weights arranged for decoding.

B  sequences                   S  keys per sequence    H  query heads
T  new tokens per sequence     d  width of a head      K  key/value heads
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from helpers.inference.decoder.rows import Rows
from helpers.inference.decoder.weights import Weights
from helpers.models.caches.cache import Cache
from helpers.models.gpt import GPT


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
        (sequences, length), places = tokens.shape, self.begin(tokens, cache, counts)
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

    def begin(self, tokens, cache: Cache, counts: Sequence[int] | None) -> torch.Tensor:
        """Make room for the tokens, and return their places."""
        places = cache.begin(tokens.shape[1], counts)
        last = int(places.max()) if places.numel() else 0
        if last >= self.config.context:
            raise ValueError(
                f"a sequence would have {last + 1} tokens with those in the cache, but the "
                f"context allows {self.config.context}"
            )
        return places

    def _buffers(self, rows: int) -> Rows:
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
            every = torch.ones(tokens, keys, dtype=torch.bool, device=q.device)
            seen = every.tril(keys - tokens)
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
