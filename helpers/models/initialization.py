"""Initial parameters that depend only on the seed and the parameter's name."""

import hashlib
import math

import torch
from torch import nn

from helpers.models.ssm_values import log_decays, step_bias

EMBEDDING_STD = 0.02  # GPT-2's
MIXERS = ("attention", "latent", "mamba", "mamba2")
RESIDUAL = (*(f"{mixer}.out.weight" for mixer in MIXERS), "mlp.down.weight")


def build(
    config,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **stage,
) -> nn.Module:
    """Build a model and initialize it. The same seed gives the same values in every process.

    In another dtype, the values are the same but for rounding.

    Args:
        config: of any model: a GPTConfig, a VAEConfig.
        stage: blocks, first, last: the part of a GPT to build; default: all.
    """
    model = config.build(dtype, "meta", seed=seed, **stage).to_empty(device=device)
    initialize(model, seed)
    return model


@torch.no_grad()
def initialize(model: nn.Module, seed: int):
    """Fill the model's parameters, in place.

    Each parameter is drawn whole, in float64, from its own generator, and then cast. So a rank that
    holds some layers or slices gets the same numbers as one process. Float32 and bf16 models are
    rounded versions of the float64 model.

    Matrices are normal with a standard deviation of 1/√(inputs), so that activations keep their
    size at any width. Matrices that write into the residual stream are also divided by √(2 layers)
    (Radford et al. 2019, section 2.3). Embeddings and the head have 0.02. Biases are 0, the norms'
    scales 1. State space models begin with the decays and steps of `ssm_values`.

    Args:
        model: a whole model or a stage. Its `config` makes first values, and its `plain_name` gives
            each parameter's plain name. A tied parameter has its first name.
    """
    for name, parameter in model.named_parameters():
        name = model.plain_name(name)
        parameter.copy_(model.config.first_value(name, parameter.shape, seed))


def first_value(name: str, shape, seed: int, layers: int) -> torch.Tensor:
    """Make the whole initial tensor of the parameter with this name, in float64."""
    if name.endswith("A_log"):
        return log_decays(shape, generator_of(name, seed))
    if name.endswith("delta.bias"):
        return step_bias(shape, generator_of(name, seed))
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
    return std * torch.randn(shape, generator=generator_of(name, seed), dtype=torch.float64)


def generator_of(name: str, seed: int) -> torch.Generator:
    """Make the generator of the parameter with this name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
