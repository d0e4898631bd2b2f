"""Parameter count of a GPT by purpose, from the model's own modules, without memory for them.

One block of each kind is built on PyTorch's meta device. Letters as in gpt.py: V, D.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache

from torch import nn

from helpers.models.gpt import Block, GPTConfig, make_norm
from helpers.models.mamba2 import GatedNorm

NORMS = (nn.RMSNorm, nn.LayerNorm, GatedNorm)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The number of a model's parameters, by their purpose.

    Attributes:
        embedding: V D.
        positions: learned positions; 0 for rotary.
        mixers, mlp: the matrices of all blocks: those that multiply each token.
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


@cache
def parameters(config: GPTConfig) -> Parameters:
    """Count the parameters of `build(config)` without building it."""
    c, every = config, Counter()
    for kind, blocks in Counter(c.mixers).items():
        for purpose, numbers in block_parameters(c, kind).items():
            every[purpose] += blocks * numbers
    every["norms"] += sum(p.numel() for p in make_norm(c, device="meta").parameters())
    return Parameters(
        embedding=c.vocab * c.width,
        positions=c.context * c.width if c.positions == "learned" else 0,
        head=0 if c.tied else c.vocab * c.width,
        **{name: every[name] for name in ("mixers", "mlp", "biases", "norms", "others")},
    )


@cache
def block_parameters(config: GPTConfig, kind: str) -> Counter:
    """Count the parameters of a block with this kind of mixer, by the names of `Parameters`.

    "last" counts the mixer's last matrix once more: that which writes into the residual stream.
    """
    block, found = Block(config, config.mixers.index(kind), device="meta"), Counter()
    for path, module in block.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, NORMS):
                purpose = "norms"
            elif name == "bias":
                purpose = "biases"
            elif isinstance(module, nn.Linear):
                purpose = "mlp" if path.startswith("mlp.") else "mixers"
            else:
                purpose = "others"
            found[purpose] += parameter.numel()
    found["last"] = getattr(block, kind).out.weight.numel()
    return found
