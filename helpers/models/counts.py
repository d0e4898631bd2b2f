"""Count a GPT's parameters, FLOPs per token and activation bytes, without building it.

The exact counts are of `helpers.models.gpt`. Each paper's own convention has the paper's name.
What a block's mixer adds is counted in a module of its own: see `MIXERS` and `mixer_counts.py`.
Letters as in gpt.py and attention.py: B, T, V, D, F, H, K, d.
"""

from collections import Counter
from dataclasses import dataclass

import torch

from helpers.models import attention_counts, latent_counts, mamba2_counts, mamba_counts
from helpers.models.config import GPTConfig
from helpers.models.mixer_counts import MixerCounts
from helpers.models.norm_counts import saved_bytes as norm_bytes

MIXERS: dict[str, MixerCounts] = {
    "attention": attention_counts,
    "latent": latent_counts,
    "mamba": mamba_counts,
    "mamba2": mamba2_counts,
}
CONVENTIONS = ("exact", "kaplan", "palm", "chinchilla")
PARTS = ("training", "forward", "backward", "recomputed")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The number of a model's parameters, by their purpose.

    Attributes:
        embedding: V D.
        positions: learned positions; 0 for rotary.
        mixers, mlp: the matrices of all blocks.
        biases: of the blocks' linear layers.
        norms: scales, and LayerNorm's biases, of the blocks and before the head.
        others: the mixers' parameters that are neither of these; 0 for attention.
        head: V D; 0 if tied, because the embedding's matrix counts once.
    """

    embedding: int
    positions: int
    mixers: int
    mlp: int
    biases: int
    norms: int
    others: int
    head: int

    @property
    def total(self) -> int:
        return self.blocks + self.embedding + self.positions + self.head

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


def parameters(config: GPTConfig) -> Parameters:
    """Count the parameters of `build(config)` without building it."""
    c = config
    mixers = [(n, MIXERS[kind].parameters(c)) for kind, n in mixers_of(c).items()]
    matrices = 3 if c.mlp == "swiglu" else 2
    mlp_bias = (matrices - 1) * c.inner + c.width if c.bias and c.inner else 0
    a_norm = c.width * (2 if c.norm == "layer" and c.bias else 1)
    return Parameters(
        embedding=c.vocab * c.width,
        positions=c.context * c.width if c.positions == "learned" else 0,
        mixers=sum(n * one.matrices for n, one in mixers),
        mlp=c.layers * matrices * c.width * c.inner,
        biases=sum(n * one.biases for n, one in mixers) + c.layers * mlp_bias,
        norms=sum(n * one.norms for n, one in mixers) + (norms_of(c) * c.layers + 1) * a_norm,
        others=sum(n * one.others for n, one in mixers),
        head=0 if c.tied else c.vocab * c.width,
    )


def mixers_of(config: GPTConfig) -> Counter[str]:
    """How many blocks have each kind of mixer."""
    return Counter(config.mixer_of(layer) for layer in range(config.layers))


def norms_of(config: GPTConfig) -> int:
    """How many norms a block has: before its mixer, and before its MLP."""
    return 1 if config.mlp == "none" else 2


def flops_per_token(
    config: GPTConfig,
    tokens: int | None = None,
    convention: str = "exact",
    *,
    part: str = "training",
    attention: bool | None = None,
    embedding: bool | None = None,
) -> int:
    """Count the FLOPs for one token of a sequence of T tokens. A multiply-add is 2 FLOPs.

    "exact": every matrix product of this model, as `helpers.measure.flops` counts them on a step.
        The forward needs 2 FLOPs for each parameter in a matrix, including the head, and 4 D T per
        layer for scores and values. The half that the causal mask hides counts too. The backward
        needs twice as much; but for scores and values 10 D T per layer with attention="sdpa", which
        recomputes the scores. Other mixers than "attention" have other products: see MIXERS.
    "kaplan": 6 N, N without embeddings (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). With
        attention=True, the forward is 2 N + 2 layers D T, without the masked half. With
        embedding=True, it includes table 1's rows of the embedding, 4 D + 2 D V.
    "palm": 6 N + 12 layers H d T, N all parameters (Chowdhery et al. 2022, arXiv:2204.02311,
        appendix B). This convention defines model FLOPs utilization.
    "chinchilla": also counts the embedding as a product with one-hot vectors, 2 V D, and the
        softmax, 3 H T per layer (Hoffmann et al. 2022, arXiv:2203.15556, appendix F). Divide it by
        6 N, N all parameters, with embedding=False, to reproduce their table A4.

    Args:
        tokens: T; None for the whole context.
        part: "training" (forward and backward), "forward", "backward", or "recomputed": the FLOPs
            that config.recompute repeats in the backward. "training" gives model FLOPs; add
            "recomputed" for hardware FLOPs. Only "exact" supports "recomputed".
        attention: whether scores and values count; None: False for "kaplan", else True.
        embedding: whether embedding and head count; None: False for "kaplan", else True. For
            "palm": whether N includes their parameters.

    Raises:
        ValueError: no such convention or part, or `tokens` is not from 1 to the context.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be one of {', '.join(CONVENTIONS)}, not {convention!r}")
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, not {part!r}")
    if part == "recomputed" and convention != "exact":
        raise ValueError(
            f"{convention} counts model FLOPs only; part 'recomputed' needs convention 'exact'"
        )
    length = _length(config, tokens)
    wide = convention != "kaplan"
    attention, embedding = (wide if on is None else on for on in (attention, embedding))
    if part == "recomputed":
        return _recomputed(config, length, attention)
    if convention == "exact":
        table = 2 * config.vocab * config.width * embedding
        forward = table + 2 * parameters(config).non_embedding
        backward = 2 * forward
        if attention:
            forward += _core(config, length, "forward")
            backward += _core(config, length, "backward")
    else:
        forward = _forward(config, length, convention, attention, embedding)
        backward = 2 * forward
    return {"forward": forward, "backward": backward, "training": forward + backward}[part]


def _core(config: GPTConfig, length: int, part: str) -> int:
    """The FLOPs of all mixers that are not of their matrices: scores and values."""
    kinds = mixers_of(config).items()
    return sum(n * MIXERS[kind].core_flops(config, length, part) for kind, n in kinds)


def _forward(config: GPTConfig, length: int, convention: str, attention: bool, embedding: bool):
    """A paper's forward: 2 N, and on request the attention's and the embedding's products."""
    if attention and set(mixers_of(config)) != {"attention"}:
        raise ValueError(
            f"convention {convention!r} counts scores of mixer 'attention' only, not of "
            f"{config.mixer!r}; use convention 'exact', or attention=False"
        )
    count = parameters(config)
    table = config.vocab * config.width
    scores = config.layers * config.width * length  # one product, in multiply-adds
    flops = 2 * count.non_embedding
    if convention == "kaplan":
        return flops + attention * 2 * scores + embedding * (4 * config.width + 2 * table)
    if convention == "palm":
        every = count.total if embedding else count.blocks
        return 2 * every + attention * 4 * scores
    softmax = 3 * config.layers * config.heads * length
    return flops + attention * (4 * scores + softmax) + embedding * 4 * table


def _recomputed(config: GPTConfig, length: int, attention: bool) -> int:
    """The FLOPs that recomputing adds.

    A checkpoint recomputes only the tensors that the backward needs. For the last product, these
    are its inputs, so it is not repeated: the block's last matrix (unless dropout follows it), and
    the values of the explicit attention. The fused attention's backward needs its result.
    """
    if config.recompute == "none":
        return 0
    if config.recompute == "full":
        last = 0 if config.dropout else config.layers * config.width * config.inner
        if config.mlp == "none" and not config.dropout:  # the mixers' output matrices
            kinds = mixers_of(config).items()
            last = sum(n * MIXERS[kind].parameters(config).last for kind, n in kinds)
        core = _core(config, length, "forward") if attention else 0
        return 2 * (parameters(config).non_embedding - last) + core
    return _core(config, length, "recomputed") if attention else 0


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
    length = _length(config, tokens)
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
    c, length = config, _length(config, tokens)
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


def korthikanti_activation_bytes(
    config: GPTConfig,
    sequences: int,
    tokens: int | None = None,
    *,
    recompute: str | None = None,
    tensor: int = 1,
    sequence_parallel: bool = False,
) -> float:
    """Bytes per layer and rank, by table 2 of Korthikanti et al. (2022, arXiv:2205.05198).

    Without parallelism, s b h (34 + 5 a s/h), where s = T, b = B, h = D, a = H. The formula assumes
    16-bit numbers, a GELU MLP of 4 h, LayerNorm, the explicit attention, and dropout with one-byte
    masks, whatever the config. It leaves out the statistics of the norms.

    Args:
        recompute: "none", "selective" (without 5 a s/h) or "full" (2 s b h); None for the config's.
        tensor: t, the ranks of tensor parallelism. They divide 24 of the 34, and 5 a s/h.
        sequence_parallel: whether t divides the other 10 too.

    Raises:
        ValueError: no such recompute, tensor below 1, or `tokens` is not from 1 to the context.
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
        raise ValueError(f"{length} tokens; the context allows 1 to {config.context}")
    return length
