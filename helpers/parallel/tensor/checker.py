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
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from helpers.parallel.tensor.rules import RULES, WHOLE, Call, Placement, said, unknown
from helpers.plots.page import table
from helpers.state.part import Part


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


def run(func: Callable, args, kwargs):
    """Check one operation, run it on the local tensors, and place its result."""
    inputs = [a for a in tree_leaves([args, kwargs]) if isinstance(a, torch.Tensor)]
    log = next(a.log for a in inputs if isinstance(a, Placed))
    name = getattr(func, "__name__", str(func)).strip("_")
    rule = RULES.get(func) or RULES.get(name) or unknown
    placements = [placement_of(tensor) for tensor in inputs]
    shapes = [tuple(tensor.shape) for tensor in inputs]
    with torch._C.DisableTorchFunctionSubclass():
        found = rule(Call(name, placements, shapes, args, kwargs))
        local = lambda a: a.as_subclass(torch.Tensor) if isinstance(a, Placed) else a  # noqa: E731
        result = func(*tree_map(local, args), **tree_map(local, kwargs))
    many = isinstance(result, tuple | list)
    made = [
        Placed(each, found, log) if isinstance(each, torch.Tensor) else each
        for each in (result if many else [result])
    ]
    shape = tuple(made[0].shape) if isinstance(made[0], torch.Tensor) else ()
    log.rows.append((name, ", ".join(map(said, placements)), said(found), shape))
    return type(result)(made) if many else made[0]


def placement_of(tensor: torch.Tensor) -> Placement:
    return tensor.placement if isinstance(tensor, Placed) else WHOLE


def placement_from(part: Part, axis: str = "tp") -> Placement:
    """How a parameter sits in the plain one, by its part."""
    dims = [cut.dim for cut in part.cuts if axis in cut.axes]
    return dims[0] if dims else WHOLE


@torch.no_grad()
def check_placements(model: nn.Module, parts: Mapping[str, Part], tokens: torch.Tensor) -> Log:
    """Run the forward of a model with checked placements, up to the logits.

    Args:
        model: of a transform with `overlap=False`: hand-written functions hide their operations.
        parts: by the model's parameter names.
        tokens: (B, T), the same on every rank.

    Raises:
        PlacementError: at the line of the wrong operation.
    """
    log = Log()
    placed = {n: place(p, placement_from(parts[n]), log) for n, p in model.named_parameters()}
    # no dropout: its masks are plain tensors
    positions = replace(model.locate(tokens), key=None)
    if positions.places.shape[-1] < tokens.shape[-1]:  # this rank's tokens
        own = place(positions.places, -1, log)
        positions = replace(positions, places=own)
    torch.func.functional_call(model, placed, (tokens, positions), tie_weights=True)
    return log
