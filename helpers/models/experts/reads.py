"""What a step of decoding reads: only the experts that some token of its batch chose.

E  experts        k  experts of a token        B  sequences, one token of each
"""

from dataclasses import dataclass

import torch

from helpers.models.counts import (
    CORES,
    bytes_per_sequence,
    bytes_per_token,
    flops_per_token,
    parameters,
)
from helpers.models.gpt import GPTConfig
from helpers.models.latent import absorbing_is_cheaper


def expected_distinct(experts: int, chosen: int, batch: int) -> float:
    """The experts that a batch reads, on average, if tokens choose alike and alone.

    A token leaves out a certain expert with probability 1 - k/E, so all B do with (1 - k/E)^B. If
    some experts are hotter than others, a batch reads fewer.
    """
    return experts * (1 - (1 - chosen / experts) ** batch)


@dataclass(frozen=True, kw_only=True)
class Decode:
    """A step of decoding.

    Attributes:
        flops: of all matrix products.
        weights: bytes of the parameters that the step reads.
        cache: bytes of keys, values and states that it reads.
    """

    flops: float
    weights: float
    cache: float

    @property
    def bytes(self) -> float:
        return self.weights + self.cache

    @property
    def intensity(self) -> float:
        """FLOPs for each byte: the place on a roofline."""
        return self.flops / self.bytes


def decode(
    config: GPTConfig,
    batch: int,
    tokens: int,
    *,
    distinct: float | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Decode:
    """Count a step that decodes one token of each of B sequences. Activations stay on the chip.

    Args:
        batch: B.
        tokens: in each sequence, the new one included.
        distinct: experts that a block with experts reads, on average; None: `expected_distinct`.
        dtype: of parameters and cache.
    """
    count, experts = parameters(config), config.experts
    routed, share = 0, 0.0
    if experts is not None:
        if distinct is None:
            distinct = expected_distinct(experts.count, experts.chosen, batch)
        share = distinct / experts.count
        inner = experts.hidden or config.inner
        blocks = config.layers - experts.after
        routed = blocks * experts.count * 3 * config.width * inner
    rows = batch * config.width * (1 + (config.positions == "learned"))  # of the embedding's table
    table = count.positions + (0 if config.tied else count.embedding)  # a tied one is the head
    read = count.total - table - routed * (1 - share) + rows
    each = bytes_per_sequence(config, dtype) + tokens * bytes_per_token(config, dtype)
    return Decode(
        flops=batch * step_flops(config, config.length(tokens)),
        weights=read * dtype.itemsize,
        cache=batch * each,
    )


def step_flops(config: GPTConfig, tokens: int) -> int:
    """Count the FLOPs for the last of T tokens, with a cache of the others.

    Latent attention reads the latents, or makes all keys and values again: see `LatentAttention`.
    """
    flops = flops_per_token(config, 1, part="forward", attention=False)
    for kind in config.mixers:
        w = config.latent_widths
        if kind.startswith("mamba"):  # C h
            sizes = getattr(config, kind)
            flops += 2 * sizes.channels(config.width) * sizes.state
        elif kind == "latent" and absorbing_is_cheaper(w, 1, tokens):
            flops += 2 * config.heads * tokens * (2 * w.kv_rank + w.rope)
        else:
            flops += CORES[kind](config, tokens)["forward"]
            if kind == "latent":
                flops += 2 * config.heads * (tokens - 1) * w.kv_rank * (w.nope + w.value)
    return flops
