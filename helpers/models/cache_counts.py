"""Memory of the KV cache and of recurrent states: the bytes that a configuration needs.

A block with attention keeps a row for each token. A recurrent block keeps a state of fixed size.
"""

import torch

from helpers.models.gpt import MIXERS, GPTConfig


def bytes_per_token(config: GPTConfig, dtype: torch.dtype = torch.bfloat16) -> int:
    """Count the bytes by which all blocks' caches grow with each token of a sequence.

    In numbers instead of bytes: 2 H d per layer for multi-head attention, 2 K d for K groups, and
    d_c + d_h^R for latent attention (DeepSeek-V2, arXiv:2405.04434, table 1).

    Args:
        dtype: of the cache.
    """
    return sum(kept.bytes_per_token(dtype) for kept in kept_by_layer(config))


def bytes_per_sequence(config: GPTConfig, dtype: torch.dtype = torch.bfloat16) -> int:
    """Count the bytes that all blocks keep for a sequence of any length."""
    return sum(kept.bytes_per_sequence(dtype) for kept in kept_by_layer(config))


def cache_bytes(
    config: GPTConfig, sequences: int, tokens: int, dtype: torch.dtype = torch.bfloat16
) -> int:
    """Count the bytes that a cache of B sequences of T tokens each needs, without any waste.

    Args:
        sequences, tokens: B and T.
        dtype: of the cache.

    Raises:
        ValueError: a number is negative, or T is beyond the context.
    """
    if sequences < 0 or tokens < 0:
        raise ValueError(f"{sequences} sequences of {tokens} tokens: neither may be negative")
    if tokens > config.context:
        raise ValueError(f"{tokens} tokens, but the context allows {config.context}")
    return sequences * (bytes_per_sequence(config, dtype) + tokens * bytes_per_token(config, dtype))


def kept_by_layer(config: GPTConfig):
    return [MIXERS[config.mixer_of(layer)].kept(config) for layer in range(config.layers)]
