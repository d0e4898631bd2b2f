"""Updates on the host: gradients go to host memory, updated parameters come back."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Self

import torch

from helpers.parallel.offload.link import Link
from helpers.parallel.precision import Plain, Tensors


@dataclass(frozen=True)
class OnHost:
    """Update on the host: the optimizer's state and its master copies are in the CPU's memory.

    Each step sends gradients there, in the format of the computation, and updated parameters back:
    2 bytes of each in bfloat16, for each parameter of this rank. It composes: `OnHost(Mixed())`
    computes in bfloat16. All else is as the inner precision has it.

    Source: Ren et al. 2021, ZeRO-Offload, section 4.

    Args:
        inner: the formats.

    Attributes:
        link: counts the bytes of one Trainer: `trainer.precision.link.to_host`.
    """

    inner: Plain = Plain()  # noqa: RUF009, it has no state
    link: Link = field(default_factory=Link, compare=False, repr=False)

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def start(self) -> Self:
        return replace(self, inner=self.inner.start(), link=Link())

    def masters(self, values: Tensors, dtype: torch.dtype) -> Tensors:
        return {
            name: torch.empty_like(value, dtype=dtype, device="cpu").requires_grad_(
                value.requires_grad
            )
            for name, value in values.items()
        }

    def collect(self, values: Mapping, masters: Tensors):
        sent = {}
        for name in masters:
            gradient, values[name].grad = values[name].grad, None
            here = None if gradient is None else self.link.down(gradient)
            sent[name] = SimpleNamespace(grad=here)
        self.link.wait_on_host()
        self.inner.collect(sent, masters)
        for name, master in masters.items():
            if sent[name].grad is not None:  # the inner precision has no master copies
                master.grad = sent[name].grad.to(master.dtype)

    @torch.no_grad()
    def write(self, masters: Tensors, values: Tensors):
        for name, master in masters.items():
            self.link.up(master, values[name])
        self.link.wait_on_device()
