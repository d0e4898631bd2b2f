"""Count what Mamba-2 has, computes and saves. For `parameter_counts.MIXERS`.

B  sequences     T  tokens     D  width     E  channels     N  state     G  groups
H  heads         P  channels of a head      k  tokens that the convolution sees
"""

from fractions import Fraction

import torch

from helpers.models.config import GPTConfig
from helpers.models.mixer_counts import MixerParameters


def sizes(config: GPTConfig) -> tuple[int, int, int]:
    """E, H and G N."""
    settings = config.mamba2
    channels, heads = settings.channels(config.width), settings.heads(config.width)
    return channels, heads, settings.groups * settings.state


def parameters(config: GPTConfig) -> MixerParameters:
    """Count the matrices that make x, the gate, B, C and Δ, the last one, A, D and convolutions."""
    channels, heads, shared = sizes(config)
    last = channels * config.width
    biases = channels + 2 * shared + heads  # of the convolutions and of the steps, always
    if config.bias:
        biases += 2 * channels + 2 * shared + config.width
    return MixerParameters(
        matrices=3 * last + config.width * (2 * shared + heads),
        last=last,
        biases=biases,
        norms=channels,
        others=(channels + 2 * shared) * config.mamba2.convolution + 2 * heads,
    )


def core_flops(config: GPTConfig, tokens: int, part: str) -> int | Fraction:
    """Count the scan's products, for one token of T: a fraction if the chunks are not all alike.

    A chunk of q tokens has the products of `fused_ssd`: C Bᵀ of q² N for each group; its product
    with x' of q² P, and two with the state of q N P, for each head. The backward repeats C Bᵀ and
    C Sᵀ, and has two products for each of the forward's.
    """
    if part == "recomputed":
        return 0
    channels, _, shared = sizes(config)
    chunk, state = min(config.mamba2.chunk, tokens), config.mamba2.state
    full, rest = divmod(tokens, chunk)
    squares = full * chunk**2 + rest**2  # the sum of q² over the chunks
    scores, mixed, one = squares * shared, squares * channels, tokens * channels * state
    times = (1, 1, 2) if part == "forward" else (3, 2, 5)
    total = 2 * (times[0] * scores + times[1] * mixed + times[2] * one)
    a_token = Fraction(total, tokens)
    return int(a_token) if a_token.denominator == 1 else a_token


def saved_bytes(config: GPTConfig, sequences: int, tokens: int, dtype: torch.dtype) -> int:
    """Count what each step of mamba2.py saves, and the scan's state before each chunk."""
    settings, (channels, heads, shared) = config.mamba2, sizes(config)
    size, wide, places = dtype.itemsize, max(4, dtype.itemsize), sequences * tokens
    cast = wide if wide != size else 0  # a copy in float32 of a 16-bit tensor
    seen = channels + 2 * shared
    window = sequences * (tokens + settings.convolution - 1) * seen * size
    a_place = seen * (size + wide)  # before and behind silu
    a_place += heads * 2 * wide  # before and behind softplus
    # the gate, its silu, y, what the norm scales, and the input of the last matrix
    a_place += channels * 5 * size
    a_place += channels * wide + settings.groups * wide  # y silu(gate), and the inverse roots
    once = heads * 2 * wide + heads * cast  # exp(A_log) and A; D
    chunks = -(-tokens // min(settings.chunk, tokens))
    states = sequences * (chunks + 1) * channels * settings.state * wide
    return window + places * a_place + once + states
