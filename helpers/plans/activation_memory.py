"""Activation memory, also under recomputation: bytes that a block keeps for its backward, by term.

B  sequences        T  tokens of a sequence        D  width        F  inner width of the MLP
H  query heads      d  width of a head             N  ranks        e  bytes of a number

The terms are those of Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", arXiv:2205.05198, section 4.1, for this course's GPT with explicit attention.
Theirs have a number of 2 bytes and a mask of 1 byte more for each score: the dropout of the scores,
which this course's model does not have. For a GPT-2 block the others are the same: 34 B T D bytes.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # it needs torch, which a formula does not
    from helpers.measure.saved import Saved


class Block(Protocol):
    """The sizes of a block: a `GPTConfig` has them."""

    width: int
    heads: int
    head_width: int
    inner: int
    norm: str
    mlp: str
    dropout: float
    recompute: str


NORMS = {"layer": (1, 2), "rms": (2, 1)}  # tensors of B T D numbers, and of B T, for each norm
INNER = {"gelu": 2, "swiglu": 4}  # tensors of B T F numbers


def block_activations(
    config: Block,
    sequences: int,
    tokens: int,
    *,
    bytes_per_number: int = 2,
    ranks: int = 1,
    sharded: bool = False,
    again: bool = False,
) -> dict[str, int]:
    """What a rank keeps of one block between forward and backward: {term: bytes}.

    Args:
        config: the block; with explicit attention.
        sequences, tokens: B and T of a micro-batch.
        ranks: N, of tensor parallelism. They divide the heads, F and, if `sharded`, T.
        sharded: sequence parallelism: between the layers a rank has T/N tokens.
        again: with `sharded`, the layers' inputs are gathered a second time, and not kept.
    """
    e, rows = bytes_per_number, sequences * tokens  # B T
    shard = rows // ranks if sharded else rows
    if config.recompute == "full":
        return {"block input": e * shard * config.width}
    wide, narrow = NORMS[config.norm]
    heads = config.heads // ranks
    terms = {
        "norms": 2 * e * shard * (wide * config.width + narrow),
        "inputs of the layers": 2 * e * (shard if again else rows) * config.width,
        "queries, keys, values": 3 * e * rows * heads * config.head_width,
        "scores": e * sequences * heads * tokens**2,
        "causal mask": tokens**2,
        "input of the output layer": e * rows * heads * config.head_width,
        "inside the MLP": INNER[config.mlp] * e * rows * config.inner // ranks,
        "dropout masks": 2 * shard * config.width if config.dropout else 0,
    }
    if config.recompute == "selective":  # the core of attention runs again, from q, k and v
        terms["scores"] = terms["causal mask"] = 0
    return terms


TERM_OF = {  # a module of a block -> its term
    "attention_norm": "norms",
    "mlp_norm": "norms",
    **dict.fromkeys(
        [f"attention.{name}" for name in ("fan_out", "query", "key", "value")]
        + [f"mlp.{name}" for name in ("fan_out", "gate", "up")],
        "inputs of the layers",
    ),
    "attention": "queries, keys, values",  # saved for a core that runs again
    "attention.core": "queries, keys, values",
    "attention.out": "input of the output layer",
    "mlp": "inside the MLP",
    "mlp.down": "inside the MLP",
    "": "dropout masks",
}


def measured_terms(
    config: Block, saved: Iterable["Saved"], tokens: int, block: int = 0
) -> dict[str, int]:
    """The bytes that a block really keeps, by the terms of `block_activations`.

    Args:
        config: with explicit attention, and without full recomputation: there a block keeps its
            input alone.
        saved: what `saved_by` found in a forward of the model.
        tokens: T.
        block: the block's number.

    Raises:
        ValueError: scores cannot be told from queries, because T is a head's width; a module saved
            something that no term covers; full recomputation.
    """
    if config.recompute == "full":
        raise ValueError(
            "with full recomputation a block keeps its input alone: there are no terms"
        )
    if tokens == config.head_width:
        raise ValueError(f"{tokens} tokens, and heads as wide: scores look like queries")
    terms = dict.fromkeys([*TERM_OF.values(), "scores", "causal mask"], 0)
    start = f"blocks.{block}"
    for one in saved:
        module = one.module.removeprefix(start)
        if module == one.module or (module and not module.startswith(".")):
            continue  # another block's
        module = module.removeprefix(".")
        if module not in TERM_OF:
            raise ValueError(f"{one.module} saved {one.shape}, and no term covers this module")
        term = TERM_OF[module]
        if module == "attention.core" and one.shape[-2:] == (tokens, tokens):
            term = "causal mask" if str(one.dtype) == "torch.bool" else "scores"
        terms[term] += one.bytes
    return terms


def korthikanti(sequences: int, tokens: int, width: int, heads: int, ranks: int, way: str) -> float:
    """The bytes of one block by table 2 of the paper: 2 bytes a number, 1 byte a dropout mask.

    Args:
        way: "no parallelism", "tensor", "tensor and sequence", "tensor, selective",
            "tensor and sequence, selective" or "full".

    Raises:
        KeyError: there is no such way.
    """
    t, scores = ranks, 5 * heads * tokens / width
    factor = {
        "no parallelism": 34 + scores,
        "tensor": 10 + 24 / t + scores / t,
        "tensor and sequence": 34 / t + scores / t,
        "tensor, selective": 10 + 24 / t,
        "tensor and sequence, selective": 34 / t,
        "full": 2,
    }
    return tokens * sequences * width * factor[way]
