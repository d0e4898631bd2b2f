"""Initial parameters that depend only on the seed and the parameter's name."""

import hashlib
import math

import torch
from torch import nn

EMBEDDING_STD = 0.02  # GPT-2's
DECAYS = (1.0, 16.0)  # |A| of Mamba-2's heads, uniform
STEPS = (0.001, 0.1)  # the step sizes of state space models, log-uniform
MIXERS = ("attention", "latent", "mamba", "mamba2")
MLPS = ("mlp.down.weight", "mlp.experts.down", "mlp.shared.down.weight")
RESIDUAL = (*(f"{mixer}.out.weight" for mixer in MIXERS), *MLPS)


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
    scales 1. State space models begin with `log_decays` and `step_bias`.

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
    if name.endswith(("bias", "balance")):
        return torch.zeros(shape, dtype=torch.float64)
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.float64)
    if name.startswith(("embedding", "positions", "head")):
        std = EMBEDDING_STD
    else:
        std = 1 / math.sqrt(shape[-1])
        if name.endswith(RESIDUAL):
            std /= math.sqrt(2 * layers)
    return std * torch.randn(shape, generator=generator_of(name, seed), dtype=torch.float64)


def generator_of(name: str, seed: int) -> torch.Generator:
    """Make the generator of the parameter with this name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def log_decays(shape, generator: torch.Generator) -> torch.Tensor:
    """Make log |A|.

    Mamba's channels all have |A| = 1 … N (Gu and Dao 2023, section 3.6, "S4D-Real"). Mamba-2's
    heads have one number each, uniform from 1 to 16, as in the authors' code.

    Args:
        shape: (E, N) for Mamba's E channels of N numbers, (H,) for Mamba-2's H heads.
    """
    if len(shape) == 2:
        return torch.arange(1, shape[1] + 1, dtype=torch.float64).log().repeat(shape[0], 1)
    low, high = DECAYS
    return (low + (high - low) * uniform(shape, generator)).log()


def step_bias(shape, generator: torch.Generator) -> torch.Tensor:
    """Make the bias b for which softplus(b) is log-uniform from 0.001 to 0.1 (section 3.6)."""
    low, high = (math.log(step) for step in STEPS)
    steps = (low + (high - low) * uniform(shape, generator)).exp()
    return steps + (-torch.expm1(-steps)).log()  # the inverse of softplus


def uniform(shape, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)
