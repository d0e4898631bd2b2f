"""The update rule: a configuration from which every owner makes its optimizer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from helpers.state.part import Part, decays

RULES = ("adamw", "sgd")
OUTER = "anchor", "outer_momentum", "updates"  # slots of LocalSteps: stale after other updates


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The configuration of the update rule.

    Attributes:
        rule: "adamw" (Loshchilov and Hutter 2019), "sgd" with `momentum`, or any other of
            `torch.optim`: `rule(groups, lr=lr)` makes the optimizer. Set its own options by
            `partial(torch.optim.Adam, betas=(0.9, 0.99))`.
        lr: the learning rate if `step` gets none.
        betas, eps: AdamW's. The defaults are common for large models: GPT-3's, appendix B.
        weight_decay: decoupled in AdamW. Only matrices get it (see `helpers.state.part`).
        clip: the maximum of the global gradient norm; None for no clipping.

    Raises:
        ValueError: a value out of its range.
    """

    rule: str | Callable[..., torch.optim.Optimizer] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.9
    clip: float | None = 1.0

    def __post_init__(self):
        if self.rule not in RULES and not callable(self.rule):
            raise ValueError(
                f"rule must be one of {', '.join(RULES)}, or make an optimizer, not {self.rule!r}"
            )
        if self.lr < 0 or self.eps <= 0 or self.weight_decay < 0:
            raise ValueError("lr and weight_decay must not be negative, and eps must be positive")
        if not all(0 <= beta < 1 for beta in (*self.betas, self.momentum)):
            raise ValueError("betas and momentum must be in [0, 1)")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip must be positive or None, not {self.clip}")

    def make(
        self, tensors: Mapping[str, torch.Tensor], parts: Mapping[str, Part]
    ) -> torch.optim.Optimizer:
        """Make an optimizer for these tensors. `set_lr` changes its learning rate.

        Args:
            tensors: the trained parameters, or shards of them.
            parts: by the same keys; a part determines whether its tensor decays.

        Raises:
            ValueError: there are no tensors.
        """
        if not tensors:
            raise ValueError("nothing to train: no parameter requires a gradient")
        groups = []
        for decay in (True, False):
            own = [tensor for key, tensor in tensors.items() if decays(parts[key]) == decay]
            if own:
                groups.append({"params": own, "weight_decay": self.weight_decay * decay})
        if callable(self.rule):
            return self.rule(groups, lr=self.lr)
        if self.rule == "sgd":
            return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, fused=True)
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)

    def expect(self, kept: Mapping[str, Mapping], shapes: Mapping[str, tuple[int, ...]], device):
        """Check that a state is of this rule: it has what a step needs. A step of nothing tells.

        Args:
            kept: by plain name; a parameter may have no state.
            shapes: of all parameters, by plain name.

        Raises:
            ValueError: a slot is missing, or the rule has no state.
        """
        if not any(kept.values()):
            return
        empty = {n: torch.zeros([0] * len(s), device=device) for n, s in shapes.items()}
        for tensor in empty.values():
            tensor.grad = torch.zeros_like(tensor)
        optimizer = self.make(
            empty, {n: Part(name=n, shape=s, holders=(0,)) for n, s in shapes.items()}
        )
        optimizer.step()
        for name, slots in kept.items():
            needed, own = optimizer.state[empty[name]].keys(), slots.keys() - OUTER
            if slots and (needed - own or (own and not needed)):
                raise ValueError(
                    f"the optimizer's state of {name} was saved with another rule: it has "
                    f"{', '.join(sorted(slots))}, and the rule {self.rule!r} needs "
                    f"{', '.join(sorted(needed - own)) or 'none'}. Use the rule of the checkpoint"
                )

    def factor(self, norm: torch.Tensor) -> torch.Tensor | None:
        """Compute the factor that clips gradients of this norm to `clip`.

        As in `torch.nn.utils.clip_grad_norm_`, it is clip / (norm + 1e-6), at most 1.

        Returns:
            None if `clip` is None.
        """
        return None if self.clip is None else (self.clip / (norm + 1e-6)).clamp(max=1.0)


def set_lr(optimizer: torch.optim.Optimizer, lr: float):
    for group in optimizer.param_groups:
        group["lr"] = lr
