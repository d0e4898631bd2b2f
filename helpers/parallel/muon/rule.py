"""Muon's update rule: momentum, made orthogonal by Newton-Schulz; AdamW for the others."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from helpers.parallel.optimizer import OptimizerConfig
from helpers.plans.muon import STEPS, hidden_matrix
from helpers.state.part import Part

A, B, C = 3.4445, -4.7750, 2.0315  # of a x + b x^3 + c x^5, steep at zero
EPS = 1e-7


def newton_schulz(matrix: torch.Tensor, steps: int = STEPS) -> torch.Tensor:
    """Make a matrix nearly orthogonal: its singular vectors, with singular values near 1.

    After 5 steps, singular values from 0.002 of the matrix's norm are between 0.68 and 1.21, and
    smaller ones have grown by a factor of at most 3.4445^5 = 485. It computes in bfloat16, which
    suffices (Jordan et al. 2024), but float64 in float64.

    Args:
        matrix: (m, n).

    Returns:
        (m, n), in the dtype of the computation.
    """
    tall = matrix.size(0) > matrix.size(1)
    x = matrix if matrix.dtype == torch.float64 else matrix.bfloat16()
    x = x.T if tall else x
    x = x / x.norm().clamp(min=EPS)  # no singular value is above 1
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Muon for matrices, beside another optimizer for the rest: one state, one list of groups.

    Args:
        shapes: tensor -> (m, n). The tensor has this shape, or is a row of m n numbers or of none.
        rest: the other optimizer; None for matrices alone.
        lr, weight_decay, momentum: of the matrices.

    Source: Jordan et al. 2024, as `torch.optim.Muon` has it.
    """

    def __init__(
        self,
        shapes: Mapping[torch.Tensor, tuple[int, int]],
        rest: torch.optim.Optimizer | None,
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
    ):
        options = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(list(shapes), options)
        self.shapes, self.rest = dict(shapes), rest
        if rest is not None:
            rest.state = self.state
            self.param_groups += rest.param_groups

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        for p in group["params"]:
            if p.grad is None:
                continue
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            momentum = self.state[p]["momentum_buffer"].lerp_(p.grad, 1 - group["momentum"])
            if p.numel():
                ahead = p.grad.lerp(momentum, group["momentum"])  # Nesterov's
                update = newton_schulz(ahead.view(self.shapes[p])).reshape(p.shape)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(self.shapes[p])))
        if self.rest is not None:
            self.rest.step()


@dataclass(frozen=True, kw_only=True)
class MuonConfig(OptimizerConfig):
    """The configuration of Muon; `betas` and `eps` are those of AdamW for the other parameters.

    One learning rate serves both: a matrix's update is scaled to the root mean square of AdamW's,
    0.2 sqrt(max(rows, columns)) (Liu et al. 2025, section 2.2).
    """

    rule: str | Callable[..., torch.optim.Optimizer] = Muon
    momentum: float = 0.95

    def make(
        self, tensors: Mapping[str, torch.Tensor], parts: Mapping[str, Part]
    ) -> torch.optim.Optimizer:
        """Make the optimizer. A matrix may be a flat row, but whole, or empty on this rank.

        Raises:
            ValueError: a part of a matrix; no matrix at all.
        """
        shapes = {}
        for key, tensor in tensors.items():
            part = parts[key]
            if hidden_matrix(part.name, part.shape):
                if tensor.numel() not in (0, math.prod(part.shape)):
                    raise ValueError(
                        f"Muon needs whole matrices, and this rank has {part}. Use Replicated, "
                        "MuonReplicated or MuonZero1, without tensor parallelism"
                    )
                shapes[tensor] = part.shape
        if not shapes:
            raise ValueError("no hidden matrix to train: use AdamW")
        rest = {key: tensor for key, tensor in tensors.items() if tensor not in shapes}
        own = OptimizerConfig(betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)
        other = own.make(rest, parts) if rest else None
        options = {"lr": self.lr, "weight_decay": self.weight_decay}
        return Muon(shapes, other, momentum=self.momentum, **options)
