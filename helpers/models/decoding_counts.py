"""Count the FLOPs and the bytes of a forward with a cache: a prefill, or one decoded token.

Both counts together give the arithmetic intensity, and so the place on a roofline. Each weight and
each cached number counts as read once, and activations do not count: they are few, and stay in the
processor's caches.

B  sequences in a batch        D  width of a token's vector    H  query heads
T  new tokens per sequence     V  different tokens             d  width of a head
C  context: tokens per sequence that are already in the cache
"""

from dataclasses import dataclass

import torch

from helpers.models.config import GPTConfig
from helpers.models.gpt import MIXERS
from helpers.models.parameter_counts import parameters


@dataclass(frozen=True, kw_only=True)
class ForwardCost:
    """What one forward with a cache costs.

    Attributes:
        flops: of all matrix products. A multiply-add is 2 FLOPs.
        weights: bytes of parameters read.
        cache_read: bytes of cached rows read: those of the context and the new ones.
        cache_written: bytes of the new rows.
    """

    flops: int
    weights: int
    cache_read: int
    cache_written: int

    @property
    def bytes(self) -> int:
        """All bytes read and written."""
        return self.weights + self.cache_read + self.cache_written

    @property
    def intensity(self) -> float:
        """FLOP per byte: the place on the horizontal axis of a roofline."""
        return self.flops / self.bytes

    def seconds(self, peak: float, bandwidth: float) -> float:
        """The roofline's lower bound on the time, in seconds.

        The memory is the limit if the intensity is below the ridge, peak / bandwidth. Otherwise the
        arithmetic is the limit.

        Args:
            peak: FLOP/s.
            bandwidth: bytes/s.
        """
        return max(self.flops / peak, self.bytes / bandwidth)


def prefill_cost(
    config: GPTConfig, sequences: int, tokens: int, dtype: torch.dtype = torch.float32
) -> ForwardCost:
    """Count the forward that reads B prompts of T tokens. It makes the logits of every place."""
    return forward_cost(config, sequences, tokens, 0, dtype)


def decode_cost(
    config: GPTConfig, sequences: int, context: int, dtype: torch.dtype = torch.float32
) -> ForwardCost:
    """Count the forward that reads one more token of each of B sequences of C tokens."""
    return forward_cost(config, sequences, 1, context, dtype)


def forward_cost(
    config: GPTConfig,
    sequences: int,
    tokens: int,
    context: int,
    dtype: torch.dtype = torch.float32,
) -> ForwardCost:
    """Count the forward that reads T new tokens of each of B sequences of C tokens.

    FLOPs: 2 B T for each number in a matrix, the head included, and 4 B T (C + T) H d for the
    scores and values of each block. The part that the causal mask hides counts too, as in
    `counts.flops_per_token`. Bytes: of the embedding, only the rows of the new tokens are read.

    Args:
        dtype: of the parameters and of the cache.

    Raises:
        ValueError: a count is out of its range, a sequence would be longer than the model's
            context, or a mixer is not "attention".
    """
    if sequences < 1 or tokens < 1 or context < 0:
        raise ValueError(
            f"{sequences} sequences with {tokens} new tokens after {context}; there must be at "
            "least one sequence and one new token, and no negative context"
        )
    if context + tokens > config.context:
        raise ValueError(
            f"a sequence would have {context + tokens} tokens, but the context allows "
            f"{config.context}"
        )
    for layer in range(config.layers):
        if config.mixer_of(layer) != "attention":
            raise ValueError(
                f"block {layer} has the mixer {config.mixer_of(layer)!r}; only the products of "
                "'attention' are counted"
            )
    count, places, keys = parameters(config), sequences * tokens, context + tokens
    table = config.vocab * config.width
    scores = config.layers * config.heads * config.head_width * keys  # one product, multiply-adds
    rows = (places + (tokens if config.positions == "learned" else 0)) * config.width
    a_token = cache_bytes_per_token(config, dtype)
    return ForwardCost(
        flops=places * (2 * (count.non_embedding + table) + 4 * scores),
        weights=(count.blocks + table + rows) * dtype.itemsize,
        cache_read=sequences * keys * a_token,
        cache_written=places * a_token,
    )


def cache_bytes_per_token(config: GPTConfig, dtype: torch.dtype = torch.float32) -> int:
    """Count the bytes by which all blocks' caches grow with each token of a sequence."""
    kinds = (MIXERS[config.mixer_of(layer)] for layer in range(config.layers))
    return sum(kind.kept(config).bytes_per_token(dtype) for kind in kinds)
