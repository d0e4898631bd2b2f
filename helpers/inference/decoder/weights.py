"""A model's weights, arranged for decoding: few large matrices, ready to multiply.

One new token needs each weight once, and little arithmetic. So the time is in reading the weights
and in starting operators. Fewer and larger matrices need fewer operators.

D  width of a token's vector    H  query heads        F  inner width of the MLP
d  width of a head              K  key/value heads    V  different tokens
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from helpers.models.attention import rotary_table
from helpers.models.gpt import GPT, Block, GPTConfig

COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
ALLOWED = {
    "norm": ("rms",),
    "positions": ("rotary",),
    "rotary_share": (1,),
    "mixers": ("attention",),
    "mlp": ("swiglu",),
    "experts": (None,),
    "bias": (False,),
}


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """One block's four matrices, (in, out) each. The norms' scales are in them.

    Attributes:
        qkv: (D, (H + 2 K) d): queries, keys and values. Queries are already divided by √d.
        out: (H d, D).
        gate_up: (D, 2 F).
        down: (F, D).
    """

    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """A copy of a model's weights. Training the model does not change the copy.

    Attributes:
        embedding: (V, D).
        blocks: the blocks' matrices, in order.
        head: (D, V).
        angles: (context, 1, d/2), complex: the rotation of each place's pairs.
    """

    config: GPTConfig
    embedding: torch.Tensor
    blocks: tuple[BlockWeights, ...]
    head: torch.Tensor
    angles: torch.Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, model: GPT) -> "Weights":
        """Copy the weights of a model with RMS norms, rotary positions and SwiGLU.

        A norm divides by the root of the mean square, then multiplies by its scale. The next
        matrix gets the scale. `Rows.norm` divides by the root of the sum of squares, so the
        matrix gets the missing √D too.

        Raises:
            ValueError: the model has another shape, or is a stage of a pipeline.
        """
        check(model, ALLOWED)
        config, dtype = model.config, model.embedding.weight.dtype
        root = math.sqrt(config.width)
        table = rotary_table(config.context, config.head_width, config.rotary_base)
        angles = torch.complex(*table).to(model.embedding.weight.device, COMPLEX[dtype])
        return cls(
            config,
            model.embedding.weight.detach().clone(),
            tuple(block_weights(block, root) for block in model.blocks.values()),
            as_input_output(model.head.weight, model.norm.weight * root),
            angles[:, None],
        )


def check(model: GPT, allowed: Mapping[str, tuple]):
    """Raise ValueError if a decoder that allows these settings cannot run the model."""
    config, reason = model.config, None
    if not (model.first and model.last and len(model.blocks) == config.layers):
        reason = "it is a stage of a pipeline"
    elif model.embedding.weight.dtype not in COMPLEX:
        reason = f"its numbers are {model.embedding.weight.dtype}, not float32 or float64"
    for name, values in allowed.items():
        given = getattr(config, name)
        for one in given if isinstance(given, tuple) else (given,):
            if one not in values:
                reason = f"{name}: {one!r}, not {' or '.join(map(repr, values))}"
    if reason:
        raise ValueError(f"the decoder cannot run this model: {reason}; use the model itself")


def block_weights(block: Block, root: float) -> BlockWeights:
    """Copy one block's weights. `root` is √D."""
    mixer, mlp, d = block.attention, block.mlp, block.config.head_width
    qkv = [
        neighbours(mixer.query.weight, d) * d**-0.5,
        neighbours(mixer.key.weight, d),
        mixer.value.weight,
    ]
    gate_up = [mlp.gate.weight, mlp.up.weight]
    return BlockWeights(
        as_input_output(torch.cat(qkv), block.attention_norm.weight * root),
        as_input_output(mixer.out.weight),
        as_input_output(torch.cat(gate_up), block.mlp_norm.weight * root),
        as_input_output(mlp.down.weight),
    )


def neighbours(matrix: torch.Tensor, d: int) -> torch.Tensor:
    """Reorder a projection's rows, so that each head's pair (i, i + d/2) is at (2 i, 2 i + 1).

    A pair of neighbours is a complex number in memory. Its rotation is one product. Queries and
    keys have the same order, so their products do not change.
    """
    pairs = matrix.unflatten(0, (-1, 2, d // 2))  # (heads, 2, d/2, D)
    return pairs.transpose(1, 2).flatten(0, 2)


def as_input_output(matrix: torch.Tensor, scale: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Make the contiguous (in, out) form of a linear layer's (out, in) matrix, inputs scaled."""
    return (matrix * scale).t().contiguous().detach()
