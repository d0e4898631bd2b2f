"""Count what Mamba has, computes and saves. For `parameter_counts.MIXERS`.

B  sequences     T  tokens     D  width     E  channels     N  state     R  rank of the steps
k  tokens that the convolution sees
"""

import torch

from helpers.models.config import GPTConfig
from helpers.models.mixer_counts import MixerParameters
from helpers.models.scan import fused


def sizes(config: GPTConfig) -> tuple[int, int, int, int]:
    """E, N, R and k."""
    settings = config.mamba
    channels, rank = settings.channels(config.width), settings.rank_of(config.width)
    return channels, settings.state, rank, settings.convolution


def parameters(config: GPTConfig) -> MixerParameters:
    """Count three matrices of D x E, those that make Δ, B and C, and the paper's A and D."""
    channels, state, rank, seen = sizes(config)
    last = channels * config.width
    biases = 2 * channels  # of the convolution and of the steps, always
    if config.bias:
        biases += 2 * channels + config.width
    return MixerParameters(
        matrices=3 * last + channels * (2 * rank + 2 * state),
        last=last,
        biases=biases,
        others=channels * (seen + state + 1),  # the convolution's weight, A and D
    )


def core_flops(config: GPTConfig, tokens: int, part: str) -> int:
    """Count the scan's products: C h in a forward, and three as large in a backward.

    The state's recurrence is no matrix product, so by convention it does not count. It costs about
    as much.
    """
    channels, state, *_ = sizes(config)
    return {"forward": 2, "backward": 6, "recomputed": 0}[part] * channels * state


def saved_bytes(config: GPTConfig, sequences: int, tokens: int, dtype: torch.dtype) -> int:
    """Count what each step of mamba.py saves, and the few states that the scan keeps."""
    channels, state, rank, seen = sizes(config)
    size, wide, places = dtype.itemsize, max(4, dtype.itemsize), sequences * tokens
    cast = wide if wide != size else 0  # a copy in float32 of a 16-bit tensor
    window = sequences * (tokens + seen - 1) * channels * size
    # before and behind silu; the gate, its silu, y, and the input of the last matrix
    a_place = channels * 6 * size + channels * cast
    a_place += rank * size
    a_place += channels * 2 * wide  # before and behind softplus
    a_place += state * 2 * wide  # B and C
    once = channels * state * 2 * wide + channels * cast  # exp(A_log) and A; D
    pieces = pieces_of(sequences, tokens, channels * state, wide)
    states = sequences * (pieces + 1) * channels * state * wide
    return window + places * a_place + once + states


def pieces_of(sequences: int, tokens: int, numbers: int, size: int) -> int:
    """How many pieces the scan cuts a sequence into. It keeps the state before each, and the last.

    Args:
        numbers: of a sequence's state.
        size: bytes of a number.
    """
    length = fused.piece_length(tokens, sequences * numbers * size)
    return -(-tokens // length)
