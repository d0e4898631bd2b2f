"""First values of a state space model: how fast it forgets, and how far a token steps.

E  channels        N  numbers of state for each channel        H  heads of Mamba-2
"""

import math

import torch

DECAYS = (1.0, 16.0)  # |A| of Mamba-2's heads, uniform
STEPS = (0.001, 0.1)  # the step sizes, log-uniform


def log_decays(shape, generator: torch.Generator) -> torch.Tensor:
    """Make log |A|.

    Mamba's channels all have |A| = 1 … N (Gu and Dao 2023, section 3.6, "S4D-Real"). Mamba-2's
    heads have one number each, uniform from 1 to 16, as in the authors' code.

    Args:
        shape: (E, N) for Mamba, (H,) for Mamba-2.
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
