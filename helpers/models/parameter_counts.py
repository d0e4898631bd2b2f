"""Count a GPT's parameters, without building it. The counts are of `helpers.models.gpt`.

What a block's mixer adds is counted in a module of its own: see `MIXERS` and `mixer_counts.py`.
Letters as in gpt.py and attention.py: V, D, F, H, K, d.
"""

from collections import Counter
from dataclasses import dataclass

from helpers.models import attention_counts, latent_counts, mamba2_counts, mamba_counts
from helpers.models.config import GPTConfig
from helpers.models.mixer_counts import MixerCounts

MIXERS: dict[str, MixerCounts] = {
    "attention": attention_counts,
    "latent": latent_counts,
    "mamba": mamba_counts,
    "mamba2": mamba2_counts,
}


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
    mixers = [(n, MIXERS[kind].parameters(c)) for kind, n in Counter(c.mixers).items()]
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


def norms_of(config: GPTConfig) -> int:
    """How many norms a block has: before its mixer, and before its MLP."""
    return 1 if config.mlp == "none" else 2
