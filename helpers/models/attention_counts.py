"""Count what attention has, computes and saves. For `parameter_counts.MIXERS`.

Letters as in attention.py: B, T, D, H, K, d.
"""

import torch

from helpers.models.config import GPTConfig
from helpers.models.mixer_counts import MixerParameters


def parameters(config: GPTConfig) -> MixerParameters:
    """Count the four matrices: H query heads and K heads of keys and values, and the output."""
    c, d = config, config.head_width
    rows = c.heads * d + 2 * c.key_heads * d  # of queries, keys and values
    last = c.heads * d * c.width
    return MixerParameters(
        matrices=rows * c.width + last, last=last, biases=rows + c.width if c.bias else 0
    )


def core_flops(config: GPTConfig, tokens: int, part: str) -> int:
    """Count scores and values: 2 D T each in a forward, all T keys for each query.

    The fused kernel's backward computes the scores again: five products instead of four. If the
    core is recomputed, the explicit form repeats the scores only: nothing needs its result.
    """
    product, fused = 2 * config.width * tokens, config.attention == "sdpa"
    if part == "forward":
        return 2 * product
    if part == "backward":
        return (5 if fused else 4) * product
    return (2 if fused else 1) * product


def saved_bytes(config: GPTConfig, sequences: int, tokens: int, dtype: torch.dtype) -> int:
    """Count queries, keys, values, the result; and what the softmax needs."""
    c, size, places = config, dtype.itemsize, sequences * tokens
    explicit = c.attention == "explicit" and c.recompute == "none"
    keys = c.heads if explicit else c.key_heads  # the explicit product repeats keys
    a_place = (2 * c.heads + 2 * keys) * c.head_width * size
    if explicit:  # the probabilities, and the causal mask
        return places * (a_place + c.heads * tokens * size) + tokens**2
    if c.recompute == "none":
        a_place += c.heads * max(4, size)  # the logarithm of each row's sum (Dao et al. 2022, 3.1)
    return places * a_place
