"""The update rule, as a config that every strategy turns into an optimizer of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

RULES = ("adamw", "sgd")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients become an update.

    Attributes:
        rule: "adamw" (Loshchilov and Hutter 2019) or "sgd" with `momentum`.
        lr: the learning rate where `step` is given none.
        betas, eps: AdamW's. The defaults are those of large models: GPT-3's, appendix B.
        weight_decay: decoupled in AdamW; matrices alone get it, as in `decays`.
        clip: the most that the norm of all gradients together may be; None for any.

    Raises:
        ValueError: a value out of its range.
    """

    rule: str = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.9
    clip: float | None = 1.0

    def __post_init__(self):
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, not {self.rule!r}")
        if self.lr < 0 or self.eps <= 0 or self.weight_decay < 0:
            raise ValueError("lr and weight_decay must not be negative, and eps must be positive")
        if not all(0 <= beta < 1 for beta in (*self.betas, self.momentum)):
            raise ValueError("betas and momentum must lie in [0, 1)")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip must be positive or None, not {self.clip}")

    def make(self, parameters: Mapping[str, torch.Tensor]) -> torch.optim.Optimizer:
        """An optimizer of these named parameters. `lr` may be set anew at each step."""
        groups = []
        for decay in (True, False):
            own = [p for name, p in parameters.items() if decays(name, p.shape) == decay]
            if own:
                groups.append({"params": own, "weight_decay": self.weight_decay * decay})
        if self.rule == "sgd":
            return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, fused=True)
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


def decays(name: str, shape: torch.Size) -> bool:
    """Matrices are pulled towards zero; biases and the norms' scales are left alone."""
    return len(shape) >= 2


def clip(parameters, most: float | None) -> torch.Tensor:
    """Scale all gradients so that their norm together is at most `most`. Returns it as it was."""
    return torch.nn.utils.clip_grad_norm_(parameters, float("inf") if most is None else most)


def set_lr(optimizer: torch.optim.Optimizer, lr: float | None):
    if lr is not None:
        for group in optimizer.param_groups:
            group["lr"] = lr


State = dict[str, dict[str, torch.Tensor]]  # parameter's name -> what the optimizer keeps of it


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping) -> State:
    """Copies of the optimizer's state, by the parameters' names."""
    return {
        name: {
            key: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for key, value in optimizer.state[p].items()
        }
        for name, p in parameters.items()
        if p in optimizer.state
    }


def load_optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping, state: State):
    """Put it back, as copies on each parameter's device."""
    optimizer.state.clear()
    for name, kept in state.items():
        p = parameters[name]
        optimizer.state[p] = {
            key: value.detach().to(p.device, copy=True)
            if isinstance(value, torch.Tensor)
            else value
            for key, value in kept.items()
        }
