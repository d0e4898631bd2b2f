"""The number formats of a strategy: of the computation, and of the optimizer's updates."""

from dataclasses import dataclass

import torch

Tensors = dict[str, torch.Tensor]


class Plain:
    """Use one format for everything. The optimizer updates the parameters themselves.

    Attributes:
        lossy, bound: as for Strategy.
    """

    lossy: str = ""
    bound: float = 0.0

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the module, for training in `dtype`."""
        return dtype

    def masters(self, values: Tensors, dtype: torch.dtype) -> Tensors:
        """Make the tensors that the optimizer updates, by name, from parameters or shards."""
        return values

    def collect(self, values: Tensors, masters: Tensors):
        """Move the values' gradients to the master copies, after the backward."""

    def write(self, masters: Tensors, values: Tensors):
        """Copy the master copies to the values, after an update."""

    def skips(self, norm: torch.Tensor) -> bool:
        """Whether to skip this update. Never here: the loss shows gradients that are not finite."""
        return False


@dataclass(frozen=True)
class Mixed(Plain):
    """Compute forward and backward in a low format. The optimizer updates master copies.

    Without master copies, small updates would be lost: bfloat16 has 8 significant bits, so
    1 + 1/512 is 1. The master copies collect such updates (Micikevicius et al. 2018, section 3.1).
    bfloat16 has the same exponents as float32, so gradients need no loss scale.

    An update is skipped if its gradients are not finite.

    Attributes:
        low: the format of parameters, activations and gradients.
        bound: as for Strategy. Rounding a parameter to 8 bits changes it by up to 1/512. If
            rounding changes a gradient's sign, AdamW makes a full step in the other direction.

    Raises:
        ValueError: `low` is float16, which needs a loss scale.
    """

    low: torch.dtype = torch.bfloat16
    bound: float = 0.3

    def __post_init__(self):
        if self.low is torch.float16:
            raise ValueError("float16 loses small gradients without a loss scale: use bfloat16")

    @property
    def lossy(self) -> str:
        return "" if self.low is torch.float64 else f"it computes in {self.low}"

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

    @torch.no_grad()
    def write(self, masters: Tensors, values: Tensors):
        torch._foreach_copy_([values[name] for name in masters], list(masters.values()))

    def skips(self, norm: torch.Tensor) -> bool:
        return not bool(norm.isfinite())
