"""Counts of a GPT before it is built: parameters, FLOPs a token, bytes that its backward needs.

Exact ones are of `helpers.models.gpt` as it stands; beside them stand the conventions of the
papers, each under its name. The letters are those of gpt.py: B, T, V, D, F, H, K, d.
"""

from dataclasses import dataclass

import torch

from helpers.models.config import GPTConfig

CONVENTIONS = ("exact", "kaplan", "palm", "chinchilla")
PARTS = ("training", "forward", "backward", "recomputed")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """How many parameters a model has, by what they do.

    Attributes:
        embedding: V D.
        positions: the learned ones; 0 for rotary.
        attention, mlp: the matrices of all blocks.
        biases: of the blocks' linear layers.
        norms: scales, and LayerNorm's biases, of the blocks and before the head.
        head: V D, or 0 where it is tied: the embedding's matrix counts once.
    """

    embedding: int
    positions: int
    attention: int
    mlp: int
    biases: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        return self.blocks + self.embedding + self.positions + self.head

    @property
    def blocks(self) -> int:
        """All but the embedding, the positions and the head; the last norm belongs here."""
        return self.non_embedding + self.biases + self.norms

    @property
    def non_embedding(self) -> int:
        """N of Kaplan et al. (2020, arXiv:2001.08361, section 2.1 and table 1): the blocks'
        matrices, 12 layers D² for a GPT-2; no embedding, position, bias or norm."""
        return self.attention + self.mlp


def parameters(config: GPTConfig) -> Parameters:
    """Counts the parameters of `build(config)` without building it."""
    c, d = config, config.head_width
    matrices = 3 if c.mlp == "swiglu" else 2
    attention_bias = c.heads * d + 2 * c.key_heads * d + c.width
    mlp_bias = (matrices - 1) * c.inner + c.width
    a_norm = c.width * (2 if c.norm == "layer" and c.bias else 1)
    return Parameters(
        embedding=c.vocab * c.width,
        positions=c.context * c.width if c.positions == "learned" else 0,
        attention=c.layers * c.width * (2 * c.heads + 2 * c.key_heads) * d,
        mlp=c.layers * matrices * c.width * c.inner,
        biases=c.layers * (attention_bias + mlp_bias) if c.bias else 0,
        norms=(2 * c.layers + 1) * a_norm,
        head=0 if c.tied else c.vocab * c.width,
    )


def flops_per_token(
    config: GPTConfig,
    tokens: int | None = None,
    convention: str = "exact",
    *,
    part: str = "training",
    attention: bool | None = None,
    embedding: bool | None = None,
) -> int:
    """FLOPs for one token of a sequence of T `tokens`; a multiply-add is 2.

    "exact": every matrix product of this model, as `helpers.measure.flops` counts them on a step.
        The forward is 2 FLOPs for each parameter in a matrix, the head's too, and 4 D T a layer
        for scores and values, without subtracting what the causal mask hides. The backward is twice
        that, but 10 D T a layer for attention="sdpa", which makes the scores again.
    "kaplan": 6 N, N without embeddings (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). With
        attention=True his longer forward, 2 N + 2 layers D T (his mask hides half); with
        embedding=True table 1's rows of the embedding too, 4 D + 2 D V.
    "palm": 6 N + 12 layers H d T, N all parameters (Chowdhery et al. 2022, arXiv:2204.02311,
        appendix B). Model FLOPs utilization is defined by it.
    "chinchilla": the embedding as a product with one-hot vectors, 2 V D, and the softmax at 3 H T a
        layer beside the products (Hoffmann et al. 2022, arXiv:2203.15556, appendix F). His table
        A4 comes out with embedding=False, over 6 N with N all parameters.

    Args:
        tokens: T; None for the whole context.
        part: "training" is forward and backward. "forward", "backward" one of them. "recomputed":
            what config.recompute runs again in the backward, which "training" leaves out (model
            FLOPs; hardware FLOPs are both together); of the exact convention alone.
        attention: whether scores and values count; None: as the convention has it (all but Kaplan).
        embedding: whether embedding and head count; None: as the convention has it (all but
            Kaplan). For "palm", whether N has their parameters.

    Raises:
        ValueError: no such convention or part, or tokens that are not from 1 to the context.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be one of {', '.join(CONVENTIONS)}, not {convention!r}")
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, not {part!r}")
    if part == "recomputed" and convention != "exact":
        raise ValueError(f"{convention} counts model FLOPs, and nothing that is recomputed")
    length = _length(config, tokens)
    wide = convention != "kaplan"
    attention, embedding = (wide if on is None else on for on in (attention, embedding))
    if part == "recomputed":
        return _recomputed(config, length, attention)
    forward = _forward(config, length, convention, attention, embedding)
    backward = 2 * forward
    if convention == "exact" and attention and config.attention == "sdpa":
        backward += 2 * config.layers * config.width * length  # Q Kᵀ again
    return {"forward": forward, "backward": backward, "training": forward + backward}[part]


def _forward(config: GPTConfig, length: int, convention: str, attention: bool, embedding: bool):
    """2 N, the attention's products where wanted, and the embedding's."""
    count = parameters(config)
    table = config.vocab * config.width
    scores = config.layers * config.width * length  # one product, in multiply-adds
    flops = 2 * count.non_embedding
    if convention == "kaplan":
        return flops + attention * 2 * scores + embedding * (4 * config.width + 2 * table)
    if convention == "palm":
        every = count.total if embedding else count.blocks
        return 2 * every + attention * 4 * scores
    if convention == "chinchilla":
        softmax = 3 * config.layers * config.heads * length
        return flops + attention * (4 * scores + softmax) + embedding * 4 * table
    return flops + attention * 4 * scores + embedding * 2 * table


def _recomputed(config: GPTConfig, length: int, attention: bool) -> int:
    """A checkpoint stops when it has all that the backward asks for.

    So the last product is not done again where only its inputs are wanted: the MLP's down matrix
    (unless dropout follows it), and the values of the explicit attention. The fused attention's
    backward wants its result.
    """
    if config.recompute == "none":
        return 0
    scores = config.layers * config.width * length
    if config.recompute == "full":
        down = 0 if config.dropout else config.layers * config.width * config.inner
        return 2 * (parameters(config).non_embedding - down) + attention * 4 * scores
    return attention * scores * (4 if config.attention == "sdpa" else 2)


def activation_bytes(
    config: GPTConfig, sequences: int, tokens: int | None = None, dtype: torch.dtype = torch.float32
) -> int:
    """Bytes that autograd keeps from the forward for the backward, the loss's too.

    Exactly what `helpers.measure.memory_of` finds on the CPU for `loss_sum(model(x), y)`, in
    training mode, where x and y (int64) have storages of their own: every storage once, without
    parameters and buffers. Recomputed parts count with their inputs; while the backward runs such a
    part again, what that saves lives too, for one block at a time.

    What an operator saves is PyTorch's choice: this was derived from its CPU kernels as of
    version 2.13, and not measured on others. RMSNorm there is made of small operators, which save
    their input, its inverse root and the normalised input (in float32 for 16-bit models); a fused
    one has no need of the last. Other kernels than the flash one behind attention="sdpa" may save
    other things.

    Args:
        sequences, tokens: B and T of the batch; tokens None for the whole context.
        dtype: of the parameters.

    Raises:
        ValueError: tokens that are not from 1 to the context.
    """
    length = _length(config, tokens)
    places, size = sequences * length, dtype.itemsize
    ids = 2 * 8  # the token for the embedding's gradient, the target for the loss's
    last = _norm(config, dtype) + config.width * size  # the last norm, and what the head takes
    wide = max(4, size)  # the loss is reduced in float32 at least: log-softmax, and one weight
    ends = places * (ids + last + config.vocab * wide + _mask(config)) + wide
    if config.positions == "learned":
        ends += 8 * length  # the places, for the gradient of their embedding
    return ends + config.layers * block_activation_bytes(config, sequences, length, dtype)


def block_activation_bytes(
    config: GPTConfig, sequences: int, tokens: int | None = None, dtype: torch.dtype = torch.float32
) -> int:
    """The same for one block: `activation_bytes` without embedding, last norm, head and loss."""
    c, length = config, _length(config, tokens)
    places, size, d = sequences * length, dtype.itemsize, config.head_width
    if c.recompute == "full":
        return places * c.width * size
    numbers = 2 * c.width  # what comes out of the two norms
    numbers += c.width  # what the attention's last matrix takes
    numbers += c.inner * (4 if c.mlp == "swiglu" else 2)  # before and after each nonlinearity
    explicit = c.attention == "explicit" and c.recompute == "none"
    keys = c.heads if explicit else c.key_heads  # the explicit product takes repeated keys
    numbers += (c.heads + 2 * keys) * d
    a_place = numbers * size + 2 * _norm(c, dtype) + 2 * _mask(c)
    if explicit:  # the probabilities, and where the future is
        return places * (a_place + c.heads * length * size) + length**2
    if c.recompute == "none":
        a_place += c.heads * max(4, size)  # the logarithm of each row's sum (Dao et al. 2022, 3.1)
    return places * a_place


def _norm(config: GPTConfig, dtype: torch.dtype) -> int:
    """Bytes a token that a norm saves, besides its result."""
    if config.norm == "layer":
        return (config.width + 2) * dtype.itemsize  # the input, its mean, its inverse deviation
    return (2 * config.width + 1) * max(4, dtype.itemsize)


def _mask(config: GPTConfig) -> int:
    """Bytes a token of one dropout's mask."""
    return config.width if config.dropout else 0


def korthikanti_activation_bytes(
    config: GPTConfig,
    sequences: int,
    tokens: int | None = None,
    *,
    recompute: str | None = None,
    tensor: int = 1,
    sequence_parallel: bool = False,
) -> float:
    """Bytes a layer on each rank, by table 2 of Korthikanti et al. (2022, arXiv:2205.05198).

    s b h (34 + 5 a s/h) without parallelism, where s = T, b = B, h = D, a = H. It is of 16-bit
    numbers, a GELU MLP of 4 h, LayerNorm, the explicit attention, and dropout with masks of one
    byte, whatever the config says; statistics of the norms are left out.

    Args:
        recompute: "none", "selective" (no 5 a s/h) or "full" (2 s b h); None for the config's.
        tensor: t, ranks of tensor parallelism: 10 and the rest over t.
        sequence_parallel: whether the 10 are divided by t too.

    Raises:
        ValueError: another recompute, tensor below 1, or tokens not from 1 to the context.
    """
    recompute = config.recompute if recompute is None else recompute
    if recompute not in ("none", "selective", "full"):
        raise ValueError(f"recompute must be none, selective or full, not {recompute!r}")
    if tensor < 1:
        raise ValueError(f"tensor must be at least 1, not {tensor}")
    length = _length(config, tokens)
    sbh = length * sequences * config.width
    if recompute == "full":
        return 2.0 * sbh
    scores = 5 * config.heads * length / config.width if recompute == "none" else 0
    apart = 10 / tensor if sequence_parallel else 10
    return sbh * (apart + (24 + scores) / tensor)


def _length(config: GPTConfig, tokens: int | None) -> int:
    length = config.context if tokens is None else tokens
    if not 1 <= length <= config.context:
        raise ValueError(f"{length} tokens, and the context holds 1 to {config.context}")
    return length
