"""Count what multi-head latent attention has, computes and saves. For `parameter_counts.MIXERS`.

H  heads        n, r, v  widths of a head, as in latent.py        T  tokens in a sequence
"""

import torch

from helpers.models.config import GPTConfig
from helpers.models.mixer_counts import MixerParameters
from helpers.models.norm_counts import saved_bytes as norm_bytes


def parameters(config: GPTConfig) -> MixerParameters:
    """Count the matrices of latent.py, its biases, and the scales of the latents' norms."""
    w, heads, width = config.latent_widths, config.heads, config.width
    queries = heads * (w.nope + w.rope)
    made = w.query_rank or 0
    from_x = [made or queries, w.kv_rank, w.rope]  # rows of the matrices that read the token
    matrices = sum(from_x) * width + made * queries
    last = heads * w.value * width
    matrices += heads * w.kv_rank * (w.nope + w.value) + last
    biases = made + w.kv_rank + w.rope + width if config.bias else 0
    return MixerParameters(matrices=matrices, last=last, biases=biases, norms=made + w.kv_rank)


def core_flops(config: GPTConfig, tokens: int, part: str) -> int:
    """Count scores and values, without a cache: 2 H T (n + r) and 2 H T v in a forward.

    For the fused kernel, values are padded to the width of keys; and its backward computes the
    scores again.
    """
    w, fused = config.latent_widths, config.attention == "sdpa"
    scores = 2 * config.heads * tokens * (w.nope + w.rope)
    values = scores if fused else 2 * config.heads * tokens * w.value
    if part == "forward":
        return scores + values
    if part == "backward":
        return 2 * (scores + values) + (scores if fused else 0)
    return scores + (values if fused else 0)  # nothing needs the explicit form's result


def saved_bytes(config: GPTConfig, sequences: int, tokens: int, dtype: torch.dtype) -> int:
    """Count the latents and their norms, queries, keys, values, the result; the softmax's needs."""
    w, heads, size, places = config.latent_widths, config.heads, dtype.itemsize, sequences * tokens
    a_place = (w.kv_rank + (w.query_rank or 0)) * size  # the norms' results
    a_place += norm_bytes("rms", w.kv_rank, dtype)
    if w.query_rank is not None:
        a_place += norm_bytes("rms", w.query_rank, dtype)
    a_place += 2 * heads * (w.nope + w.rope + w.value) * size  # q, k, v, and the input of `out`
    if config.recompute != "none":
        return places * a_place
    if config.attention == "explicit":  # the probabilities, and the causal mask
        return places * (a_place + heads * tokens * size) + tokens**2
    a_place += heads * max(4, size)  # the logarithm of each row's sum (Dao et al. 2022, 3.1)
    if extra := w.nope + w.rope - w.value:  # padding of v; and the padded result, beside its copy
        a_place += heads * (extra + w.nope + w.rope) * size
    return places * a_place
