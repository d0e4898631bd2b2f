"""The optimizer on the host (ZeRO-Offload): its state and its tensors are in the CPU's memory.

Source: Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC,
section 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Self

import torch

from helpers.parallel.precision import Plain, Tensors


@dataclass(frozen=True)
class OnHost(Plain):
    """Update on the host. Each step sends gradients there, and updated parameters back.

    It composes: `OnHost(Mixed())` computes in bfloat16, and has its master copies on the host.

    Args:
        inner: the formats.
    """

    inner: Plain = field(default_factory=Plain)

    @property
    def lossy(self) -> str:
        return self.inner.lossy

    @property
    def bound(self) -> float:
        return self.inner.bound

    def start(self) -> Self:
        return replace(self, inner=self.inner.start())

    @property
    def loss_scale(self) -> float:
        return self.inner.loss_scale

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        return self.inner.computes_in(dtype)

    def prepare(self, model: torch.nn.Module):
        self.inner.prepare(model)

    def masters(self, values: Tensors, dtype: torch.dtype) -> Tensors:
        return {
            name: torch.empty_like(value, dtype=dtype, device="cpu").requires_grad_(
                value.requires_grad
            )
            for name, value in values.items()
        }

    def collect(self, values: Tensors, masters: Tensors):
        found = {name: SimpleNamespace(dtype=m.dtype, grad=None) for name, m in masters.items()}
        self.inner.collect(values, found)
        for name, master in masters.items():
            gradient = values[name].grad if found[name].grad is None else found[name].grad
            if gradient is not None:
                gradient = gradient.to(master.device, master.dtype, copy=True)
            master.grad, values[name].grad = gradient, None

    @torch.no_grad()
    def write(self, masters: Tensors, values: Tensors):
        torch._foreach_copy_([values[name] for name in masters], list(masters.values()))

    def skips(self, norm: torch.Tensor) -> bool:
        return self.inner.skips(norm)

    def adapt(self, *, skipped: bool):
        self.inner.adapt(skipped=skipped)

    def state(self) -> dict[str, float]:
        return self.inner.state()

    def load(self, state: Mapping[str, float]):
        self.inner.load(state)
