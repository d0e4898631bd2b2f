"""Count the bytes of a GPT's activations: what autograd saves for the backward.

What a block's mixer and its norms save is counted in modules of their own. Letters: B, T as in
gpt.py.
"""

import torch

from helpers.models.config import GPTConfig
from helpers.models.norm_counts import saved_bytes as norm_bytes
from helpers.models.parameter_counts import MIXERS, norms_of


def activation_bytes(
    config: GPTConfig, sequences: int, tokens: int | None = None, dtype: torch.dtype = torch.float32
) -> int:
    """Count the bytes that autograd saves in forward and loss for the backward.

    It equals what `helpers.measure.memory_of` measures on the CPU for `loss_sum(model(x), y)` in
    training mode, if x and y (int64) have storages of their own. Each storage counts once;
    parameters and buffers do not count. Recomputed parts count with their inputs only. While the
    backward recomputes a part, its saved tensors need memory too, for one block at a time.

    PyTorch decides what an operator saves. The formulas hold for the CPU kernels of version 2.13,
    and were not measured on others. There, RMSNorm consists of small operators, which save their
    input, its inverse root and the normalised input (in float32 for 16-bit models). A fused RMSNorm
    would not save the normalised input. attention="sdpa" means the flash kernel; other kernels may
    save other tensors.

    Args:
        sequences, tokens: B and T of the batch; tokens=None for the whole context.
        dtype: of the parameters.

    Raises:
        ValueError: `tokens` is not from 1 to the context.
    """
    length = config.length(tokens)
    places, size = sequences * length, dtype.itemsize
    ids = 2 * 8  # the token, for the embedding's gradient; the target, for the loss's gradient
    last = _norm(config, dtype) + config.width * size  # the last norm, and the head's input
    wide = max(4, size)  # log-softmax and one weight of the loss: at least float32
    ends = places * (ids + last + config.vocab * wide + _mask(config)) + wide
    if config.positions == "learned":
        ends += 8 * length  # the places, for the gradient of the positions' embedding
    blocks = range(config.layers)
    return ends + sum(block_activation_bytes(config, sequences, length, dtype, n) for n in blocks)


def block_activation_bytes(
    config: GPTConfig,
    sequences: int,
    tokens: int | None = None,
    dtype: torch.dtype = torch.float32,
    layer: int = 0,
) -> int:
    """Count one block's share of `activation_bytes`: no embedding, last norm, head or loss.

    Args:
        layer: the block's number; blocks may differ in their mixer.
    """
    c, length = config, config.length(tokens)
    places, size = sequences * length, dtype.itemsize
    if c.recompute == "full":
        return places * c.width * size
    numbers = norms_of(c) * c.width  # the norms' outputs
    numbers += c.inner * (4 if c.mlp == "swiglu" else 2)  # before and after each nonlinearity
    a_place = numbers * size + norms_of(c) * (_norm(c, dtype) + _mask(c))
    return places * a_place + MIXERS[c.mixer_of(layer)].saved_bytes(c, sequences, length, dtype)


def _norm(config: GPTConfig, dtype: torch.dtype) -> int:
    """Bytes per token that a block's norm, or the last one, saves, besides its result."""
    return norm_bytes(config.norm, config.width, dtype)


def _mask(config: GPTConfig) -> int:
    """Bytes per token of one dropout mask."""
    return config.width if config.dropout else 0
