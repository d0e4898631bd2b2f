"""First parameters that depend on the seed and the parameter's name, and on nothing else."""

import hashlib
import math

import torch
from torch import nn

EMBEDDING_STD = 0.02  # GPT-2's
RESIDUAL = ("attention.out.weight", "mlp.down.weight")


@torch.no_grad()
def initialize(model: nn.Module, seed: int):
    """Fill the model's parameters, in place.

    Each is drawn whole, in float64, from a generator of its own; then it is cast. So a rank that
    holds a few layers, or a slice, gets the numbers that one process has there, and float32 and
    bf16 models are rounded versions of the float64 one.

    Matrices are normal with a standard deviation of 1/√(inputs), so that activations keep their
    size at any width; those that write into the residual stream are divided by √(2 layers) too
    (Radford et al. 2019, section 2.3). Embeddings: 0.02. Biases 0, the norms' scales 1.

    Args:
        model: a whole one or a stage, with a `config` that gives first values and a `plain_name`
            for each parameter; a tied parameter counts under its first name.
    """
    for name, parameter in model.named_parameters():
        name = model.plain_name(name)
        parameter.copy_(model.config.first_value(name, parameter.shape, seed))


def first_value(name: str, shape, seed: int, layers: int) -> torch.Tensor:
    """The whole parameter of that name, in float64."""
    if name.endswith("bias"):
        return torch.zeros(shape, dtype=torch.float64)
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.float64)
    if name.startswith(("embedding", "positions", "head")):
        std = EMBEDDING_STD
    else:
        std = 1 / math.sqrt(shape[1])
        if name.endswith(RESIDUAL):
            std /= math.sqrt(2 * layers)
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return std * torch.randn(shape, generator=generator, dtype=torch.float64)
