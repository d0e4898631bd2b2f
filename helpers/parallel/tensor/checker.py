"""A placement checker: each activation knows whether it is whole, cut, or a partial sum.

`Placed` is a tensor that carries its placement over one axis through a forward. An operation that
makes no sense for the placement raises a PlacementError at the line that calls it, before any
message is sent: a GELU of a partial sum, a sum taken twice, a norm over a cut dim. Every operation
that passes is a row of `log`, and the log shows itself as a table.

    whole      every rank has the same tensor
    cut(d)     dim d is cut: the ranks' tensors, side by side along d, are the whole
    partial    the whole is the sum of the ranks' tensors

The forward alone is checked. DTensor makes the same distinction: Replicate, Shard, Partial.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from helpers.comm import regions
from helpers.plots.table import table
from helpers.state.part import Part

WHOLE, PARTIAL = "whole", "partial"
Placement = str | int  # WHOLE, PARTIAL, or the dim that is cut, counted from 0


class PlacementError(TypeError):
    """An operation that is wrong for the placement of its inputs."""


@dataclass
class Log:
    """The checked operations, in order. Draws itself as a table.

    Attributes:
        rows: (operation, placements of its inputs, placement of its result, local shape).
    """

    rows: list[tuple[str, str, str, tuple[int, ...]]] = field(default_factory=list)

    def __repr__(self):
        return "\n".join(
            f"{name:<24} {inputs:<24} -> {result:<8} {shape}"
            for name, inputs, result, shape in self.rows
        )

    def _repr_html_(self):
        head = ("operation", "inputs", "result", "local shape")
        return table(self.rows, head=head, align=("left", "left", "left", "left"))


class Placed(torch.Tensor):
    """A local tensor with its placement. Make one with `place`."""

    @staticmethod
    def __new__(cls, local: torch.Tensor, placement: Placement, log: Log):
        made = torch.Tensor._make_subclass(cls, local.detach(), local.requires_grad)
        made.placement, made.log = placement, log
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in UNTRACKED or getattr(func, "__name__", "") == "__get__":
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return run(func, args, kwargs)


UNTRACKED = {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.__len__}


def place(local: torch.Tensor, placement: Placement, log: Log) -> Placed:
    """Say how a rank's tensor sits in the whole one: WHOLE, PARTIAL, or the dim that is cut."""
    if isinstance(placement, int):
        placement = range(local.dim())[placement]
    return Placed(local, placement, log)
