"""The update rule as one loop over memory, on the CPU: PyTorch's compiler makes it.

It is the lesson of the Triton kernel without a GPU. `torch.compile` needs a C++ compiler.
"""

import math
from collections.abc import Callable

import torch

FLOPS = 14  # of the rule, for each parameter: 3 for m, 4 for v, 7 for p
BYTES = 28  # of one float32 parameter: p, g, m and v are read; p, m and v are written


def update(p, g, m, v, decay, size, root, beta1: float, beta2: float, eps: float):
    """Update one parameter with its moments, in place. The arguments are those of `rule.adamw`.

    `decay`, `size` and `root` are tensors of one number, so that a new step needs no new loop.
    """
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    p.mul_(decay).sub_(size * (m / (v.sqrt() / root + eps)))


def compiled_update() -> Callable:
    """`update`, compiled: one loop that reads and writes each number once."""
    return torch.compile(update, fullgraph=True, dynamic=False)


def factors(step: int, lr: float, beta1: float, beta2: float, weight_decay: float) -> tuple:
    """(decay, size, root) of a step, as tensors. The first step is 1."""
    numbers = (
        1 - lr * weight_decay,
        lr / (1 - beta1**step),
        math.sqrt(1 - beta2**step),
    )
    return tuple(torch.tensor(number) for number in numbers)
