"""Counts of a GPT: parameters by purpose, bytes of the KV cache and of states, FLOPs per token.

Parameters are counted on the model's own modules: one block of each kind is built on PyTorch's
meta device. A block with attention keeps a row for each token; a recurrent block keeps a state of
fixed size. FLOPs are exact: 2 for each number of a matrix, and `CORES`: the products of a mixer
that are not of its matrices. With experts, the matrices are those that a token meets: of k of the E
experts, without drops. Letters as in gpt.py and attention.py: T, V, D, H, d.
"""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import torch
from torch import nn

from helpers.models.experts.layer import Experts, Router
from helpers.models.gpt import MIXERS, Block, GPTConfig, make_norm
from helpers.models.mamba2 import GatedNorm

MATRICES = (nn.Linear, Router, Experts)
NORMS = (nn.RMSNorm, nn.LayerNorm, GatedNorm)
PARTS = ("training", "forward", "backward", "recomputed")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The number of a model's parameters, by their purpose.

    Attributes:
        embedding: V D.
        positions: learned positions; 0 for rotary.
        mixers, mlp: the matrices of all blocks.
        biases: of the blocks' linear layers, and of the choice of experts.
        norms: scales, and LayerNorm's biases, of the blocks and before the head.
        others: the mixers' parameters that are neither of these; 0 for attention.
        head: V D; 0 if tied, because the embedding's matrix counts once.
        idle: how many of `mlp` do not multiply a token: those of the experts that it did not
            choose.
    """

    embedding: int
    positions: int
    mixers: int
    mlp: int
    biases: int
    norms: int
    others: int
    head: int
    idle: int = 0

    @property
    def total(self) -> int:
        return self.blocks + self.embedding + self.positions + self.head

    @property
    def active(self) -> int:
        """The parameters that one token needs: all, but for the experts that it did not choose."""
        return self.total - self.idle

    @property
    def blocks(self) -> int:
        """All but the embedding, the positions and the head. The last norm is included."""
        return self.non_embedding + self.biases + self.norms + self.others

    @property
    def non_embedding(self) -> int:
        """N of Kaplan et al. (2020, arXiv:2001.08361, section 2.1 and table 1).

        It counts only the blocks' matrices (12 layers D² for a GPT-2): no embeddings, positions,
        biases or norms.
        """
        return self.mixers + self.mlp

    @property
    def multiplied(self) -> int:
        """The blocks' matrices that multiply a token: all, or with experts the active ones."""
        return self.non_embedding - self.idle


@cache
def parameters(config: GPTConfig) -> Parameters:
    """Count the parameters of `build(config)` without building it."""
    c, every = config, Counter()
    for layer, blocks in alike(c).items():
        for purpose, numbers in block_parameters(c, layer).items():
            every[purpose] += blocks * numbers
    every["norms"] += sum(p.numel() for p in make_norm(c, device="meta").parameters())
    return Parameters(
        embedding=c.vocab * c.width,
        positions=c.context * c.width if c.positions == "learned" else 0,
        head=0 if c.tied else c.vocab * c.width,
        **{name: every[name] for name in ("mixers", "mlp", "biases", "norms", "others", "idle")},
    )


def alike(config: GPTConfig) -> Counter:
    """The first block of each kind, and how many blocks are of that kind."""
    kinds = [(config.mixer_of(layer), config.routed(layer)) for layer in range(config.layers)]
    return Counter(kinds.index(kind) for kind in kinds)


@cache
def block_parameters(config: GPTConfig, layer: int) -> Counter:
    """Count the parameters of a block, by the names of `Parameters`.

    "last" counts the last matrix once more, if a checkpoint of the block does not multiply by it:
    that which writes into the residual stream. The gates of experts need their last products, and
    the shared experts are computed before these.
    """
    block, found = Block(config, layer, device="meta"), Counter()
    for path, module in block.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, NORMS):
                purpose = "norms"
            elif name in ("bias", "balance"):
                purpose = "biases"
            elif isinstance(module, MATRICES):
                purpose = "mlp" if path.startswith("mlp.") else "mixers"
            else:
                purpose = "others"
            found[purpose] += parameter.numel()
            if isinstance(module, Experts):
                idle = config.experts.count - config.experts.chosen
                found["idle"] += parameter.numel() // config.experts.count * idle
    last = getattr(block, block.kind).out if config.mlp == "none" else block.mlp
    if config.mlp != "none":
        last = None if block.routed else last.down
    found["last"] = last.weight.numel() if last else 0
    return found


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


def flops_per_token(
    config: GPTConfig,
    tokens: int | None = None,
    *,
    part: str = "training",
    attention: bool = True,
    embedding: bool = True,
) -> int:
    """Count the FLOPs for one token of a sequence of T tokens. A multiply-add is 2 FLOPs.

    Every matrix product of this model counts, as `helpers.measure.flops` counts them on a step. The
    forward needs 2 FLOPs for each parameter in a matrix, including the head, and 4 D T per layer
    for scores and values. The half that the causal mask hides counts too, though "blockwise" leaves
    out whole blocks of it. The backward needs twice as much; but for scores and values 10 D T per
    layer with "sdpa" and "blockwise", which recompute the scores. Other mixers than "attention"
    have other products.

    Args:
        tokens: T; None for the whole context.
        part: "training" (forward and backward), "forward", "backward", or "recomputed": the FLOPs
            that config.recompute repeats in the backward. "training" gives model FLOPs; add
            "recomputed" for hardware FLOPs.
        attention: whether scores and values count.
        embedding: whether the head counts.

    Raises:
        ValueError: no such part, or `tokens` is not from 1 to the context.
    """
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, not {part!r}")
    length = config.length(tokens)
    if part == "recomputed":
        return _recomputed(config, length, attention)
    forward = 2 * (parameters(config).multiplied + config.vocab * config.width * embedding)
    backward = 2 * forward
    if attention:
        forward += _core(config, length, "forward")
        backward += _core(config, length, "backward")
    return {"forward": forward, "backward": backward, "training": forward + backward}[part]


def _core(config: GPTConfig, length: int, part: str) -> int | Fraction:
    """The FLOPs of all mixers that are not of their matrices."""
    kinds = Counter(config.mixers).items()
    return sum(blocks * CORES[kind](config, length)[part] for kind, blocks in kinds)


def _recomputed(config: GPTConfig, length: int, attention: bool) -> int:
    """The FLOPs that recomputing adds.

    A checkpoint recomputes only the tensors that the backward needs. For the last product, these
    are its inputs, so it is not repeated: the block's last matrix (unless dropout follows it), and
    the values of the explicit attention. The fused attention's backward needs its result.
    """
    if config.recompute == "none":
        return 0
    if config.recompute == "full":
        last = sum(
            n * block_parameters(config, layer)["last"] for layer, n in alike(config).items()
        )
        core = _core(config, length, "forward") if attention else 0
        return 2 * (parameters(config).multiplied - (0 if config.dropout else last)) + core
    return _core(config, length, "recomputed") if attention else 0


def products(heads: int, tokens: int, key: int, value: int, fused: bool) -> dict[str, int]:
    """The FLOPs of scores and values by part, for T keys, and keys and values of these widths.

    The fused kernel's backward computes the scores again: five products instead of four. If the
    core is recomputed, the explicit form repeats the scores only: nothing needs its result.
    """
    scores, values = (2 * heads * tokens * width for width in (key, value))
    return {
        "forward": scores + values,
        "backward": 2 * (scores + values) + fused * scores,
        "recomputed": scores + fused * values,
    }


def attention(config: GPTConfig, tokens: int) -> dict[str, int]:
    """Scores and values: 2 D T each in a forward, all T keys for each query."""
    d = config.head_width
    return products(config.heads, tokens, d, d, config.attention != "explicit")


def latent(config: GPTConfig, tokens: int) -> dict[str, int]:
    """Scores and values without a cache. The fused kernel gets values as wide as the keys."""
    w, kind = config.latent_widths, config.attention
    key = w.nope + w.rope
    value = key if kind == "sdpa" else w.value
    return products(config.heads, tokens, key, value, kind != "explicit")


def mamba(config: GPTConfig, tokens: int) -> dict[str, int]:
    """C h in a forward, and three products as large in a backward.

    The state's recurrence is no matrix product, so by convention it does not count. It costs about
    as much.
    """
    one = 2 * config.mamba.channels(config.width) * config.mamba.state
    return {"forward": one, "backward": 3 * one, "recomputed": 0}


def mamba2(config: GPTConfig, tokens: int) -> dict[str, int | Fraction]:
    """The scan's products, for one token of T: a fraction if the chunks are not all alike.

    A chunk of q tokens has the products of `scan.ssd`: C Bᵀ of q² N for each group; its
    product with x' of q² P, and two with the state of q N P, for each head. The backward repeats
    C Bᵀ and C Sᵀ, and has two products for each of the forward's.
    """
    sizes = config.mamba2
    channels, chunk = sizes.channels(config.width), min(sizes.chunk, tokens)
    squares = tokens // chunk * chunk**2 + (tokens % chunk) ** 2  # the sum of q² over the chunks
    scores, mixed = squares * sizes.groups * sizes.state, squares * channels
    one = tokens * channels * sizes.state
    forward = Fraction(2 * (scores + mixed + 2 * one), tokens)
    backward = Fraction(2 * (3 * scores + 2 * mixed + 5 * one), tokens)
    whole = [int(n) if n.denominator == 1 else n for n in (forward, backward)]
    return {"forward": whole[0], "backward": whole[1], "recomputed": 0}


CORES = {"attention": attention, "latent": latent, "mamba": mamba, "mamba2": mamba2}
