"""The number formats of a strategy: of the computation, and of the updates."""

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import torch

from helpers.parallel.tensor.layers import RowParallel
from helpers.precision.fp8 import emulate_fp8
from helpers.precision.scaling import LossScale

Tensors = dict[str, torch.Tensor]


class Plain:
    """Use one format for everything. The optimizer updates the parameters themselves.

    Attributes:
        lossy, bound, unsaved: as for Strategy.
    """

    lossy: str = ""
    unsaved: str = ""
    bound: float = 0.0

    def start(self) -> Self:
        """The precision of one Trainer. It has a state of its own if there is any state."""
        return self

    @property
    def loss_scale(self) -> float:
        """The factor of the loss, and so of the gradients until `collect`."""
        return 1.0

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the module, for training in `dtype`."""
        return dtype

    def prepare(self, model: torch.nn.Module):
        """Change the module that the transform made, in place. Here this changes nothing."""

    def masters(self, values: Tensors, dtype: torch.dtype) -> Tensors:
        """Make the tensors that the optimizer updates, by name, from parameters or shards."""
        return values

    def collect(self, values: Tensors, masters: Tensors):
        """Move the values' gradients to the master copies, after the backward. Unscale them."""

    def write(self, masters: Tensors, values: Tensors):
        """Copy the master copies to the values, after an update."""

    def skips(self, norm: float) -> bool:
        """Whether to skip this update. Never here: the loss shows gradients that are not finite.

        Args:
            norm: of all gradients of all ranks together, so every rank makes the same decision.
        """
        return False

    def adapt(self, *, skipped: bool):
        """Adapt the loss scale, after the step's decision."""

    def state(self) -> dict[str, float]:
        """The numbers that a checkpoint needs; none here."""
        return {}

    def load(self, state: Mapping[str, float]):
        """Continue from a `state`."""


# As for Strategy. Measured with a GPT of 26 thousand parameters, 20 steps, five seeds, and AdamW
# with eps = 1e-4: 0.038 to 0.049 in bfloat16, 0.005 to 0.007 in float16. The first step is the
# worst. With the usual eps = 1e-8, that step has the full length for every gradient, however small
# the gradient is. Rounding may change the sign of a small gradient, so bfloat16 then reaches 0.15
# and float16 0.06.
BOUNDS = {torch.bfloat16: 0.1, torch.float16: 0.033}
FP8_BOUND = 0.5  # measured likewise: 0.31 to 0.35


@dataclass(frozen=True)
class Mixed(Plain):
    """Compute forward and backward in a low format. The optimizer updates master copies.

    Without master copies, small updates would be lost: bfloat16 has 8 significant bits, so
    1 + 1/512 is 1. The master copies collect such updates (Micikevicius et al. 2018, section 3.1).
    bfloat16 has the same exponents as float32, so gradients need no loss scale. float16 needs one.

    Gradients are scaled as long as they are in the low format, in messages too. The master copies
    get them unscaled, so norms and clipping use true gradients. An update is skipped if any
    gradient of any rank is not finite: the global norm shows it to all ranks.

    Args:
        low: the format of parameters, activations, gradients and messages.
        scale: the loss scale at the start; None for 1. Each Trainer has its own copy.

    Raises:
        ValueError: `low` is float16, and there is no loss scale.
    """

    low: torch.dtype = torch.bfloat16
    scale: LossScale | None = None

    def __post_init__(self):
        if self.low is torch.float16 and self.scale is None:
            raise ValueError(
                "float16 loses small gradients without a loss scale: use bfloat16, or "
                "Mixed(torch.float16, scale=LossScale())"
            )

    @property
    def lossy(self) -> str:
        return "" if self.low is torch.float64 else f"it computes in {self.low}"

    @property
    def bound(self) -> float:
        return BOUNDS.get(self.low, 0.0)

    def start(self) -> Self:
        return self if self.scale is None else replace(self, scale=copy(self.scale))

    @property
    def loss_scale(self) -> float:
        return 1.0 if self.scale is None else self.scale.scale

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        return self.low

    def masters(self, values: Tensors, dtype: torch.dtype) -> Tensors:
        return {
            name: torch.empty_like(value, dtype=dtype).requires_grad_(value.requires_grad)
            for name, value in values.items()
        }

    def collect(self, values: Tensors, masters: Tensors):
        for name, master in masters.items():
            gradient = values[name].grad
            master.grad = None if gradient is None else gradient.to(master.dtype, copy=True)
            values[name].grad = None
        wide = [master.grad for master in masters.values() if master.grad is not None]
        if self.loss_scale != 1 and wide:
            torch._foreach_div_(wide, self.loss_scale)

    @torch.no_grad()
    def write(self, masters: Tensors, values: Tensors):
        torch._foreach_copy_([values[name] for name in masters], list(masters.values()))

    def skips(self, norm: float) -> bool:
        return not math.isfinite(norm)

    def adapt(self, *, skipped: bool):
        if self.scale is not None:
            self.scale.update(skipped=skipped)

    def state(self) -> dict[str, float]:
        return {} if self.scale is None else self.scale.state()

    def load(self, state: Mapping[str, float]):
        if self.scale is not None and state:
            self.scale.load(state)


@dataclass(frozen=True)
class EmulatedFp8(Mixed):
    """Round the inputs of the blocks' linear layers to 8 bits: emulated, so it saves no time.

    All else is as in `Mixed`. Each rank has its own history of largest magnitudes, so the ranks'
    scales may differ. A checkpoint has no histories: after it, the first values give the scales.

    Raises:
        ValueError: from a Trainer, if its layers are tensor-parallel.
    """

    unsaved = "the histories of magnitudes"

    @property
    def lossy(self) -> str:
        return f"emulated fp8: its products round their inputs to 8 bits, and {super().lossy}"

    @property
    def bound(self) -> float:
        return FP8_BOUND

    def prepare(self, model: torch.nn.Module):
        if any(isinstance(module, RowParallel) for module in model.modules()):
            raise ValueError(
                "tensor-parallel layers have products of their own, which fp8 emulation does not "
                "round: use a layout without tp"
            )
        emulate_fp8(model)
