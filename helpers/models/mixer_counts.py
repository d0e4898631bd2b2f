"""What a module must count about a mixer, so that models that have it can be counted.

The table of these modules is `parameter_counts.MIXERS`.

B  sequences in a batch        T  tokens in a sequence
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from helpers.models.config import GPTConfig


@dataclass(frozen=True, kw_only=True)
class MixerParameters:
    """The number of one mixer's parameters, by their purpose.

    Attributes:
        matrices: in the matrix products that each token takes part in: 2 FLOPs each in a forward.
        last: those of them in the last matrix, which writes into the residual stream.
        biases: of the linear layers.
        norms: scales of the norms inside the mixer. The block's own norms do not count here.
        others: all the rest, whose products are in `core_flops`, or are no matrix products.
    """

    matrices: int
    last: int
    biases: int = 0
    norms: int = 0
    others: int = 0


class MixerCounts(Protocol):
    """A module with these three functions. Each counts one block's mixer."""

    def parameters(self, config: GPTConfig) -> MixerParameters: ...

    def core_flops(self, config: GPTConfig, tokens: int, part: str) -> int:
        """Count the FLOPs per token of the matrix products without the `matrices`.

        Args:
            tokens: T.
            part: "forward", "backward", or "recomputed": what recompute="selective" repeats.
        """

    def saved_bytes(
        self, config: GPTConfig, sequences: int, tokens: int, dtype: torch.dtype
    ) -> int:
        """Count the bytes that autograd saves in the mixer, without its input.

        Args:
            config: with recompute "none" or "selective".
            sequences, tokens: B and T.
            dtype: of the parameters.
        """
