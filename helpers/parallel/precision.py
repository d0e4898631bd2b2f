"""In which format a model computes, and in which it keeps what the optimizer updates."""

from dataclasses import dataclass

import torch

Tensors = dict[str, torch.Tensor]


class Plain:
    """One format for everything: the optimizer updates the parameters themselves.

    Attributes:
        lossy, bound: as for Strategy.
    """

    lossy: str = ""
    bound: float = 0.0

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the module, where `dtype` is that of training."""
        return dtype

    def masters(self, values: Tensors, dtype: torch.dtype) -> Tensors:
        """What the optimizer updates, by name; `values` are the parameters, or shards of them."""
        return values

    def collect(self, values: Tensors, masters: Tensors):
        """Hand the values' gradients over to the master copies, after the backward."""

    def write(self, masters: Tensors, values: Tensors):
        """Give the values the master copies' numbers, after an update."""

    def skips(self, norm: torch.Tensor) -> bool:
        """Whether to leave this update out. No: a gradient that is not finite shows in the loss."""
        return False


@dataclass(frozen=True)
class Mixed(Plain):
    """Forward and backward in a low format, beside master copies that the optimizer updates.

    An update of less than half of a format's last place would be lost: bfloat16 keeps 8 bits, so
    1 + 1/512 is 1. The master copies collect such updates (Micikevicius et al. 2018, section 3.1).
    bfloat16 has the exponents of float32, so its gradients need no loss scale.

    An update whose gradients are not finite is skipped.

    Attributes:
        low: the format of parameters, activations and gradients.
        bound: as for Strategy. Rounding a parameter to 8 bits moves it by up to 1/512 of itself;
            AdamW turns a gradient's sign that rounding changed into a whole step the other way.

    Raises:
        ValueError: float16, whose smallest numbers need a loss scale.
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
