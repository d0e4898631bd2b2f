"""Divide a model into units: pieces that an owner may gather, free, load or store together."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, eq=False)
class Unit:
    """A piece of a model that runs as one call.

    Attributes:
        name: of the module: "blocks.3".
        module: its call is the unit's forward.
        parameters: by their names in the whole model. A tied parameter, which several units use,
            belongs to the first of them.
    """

    name: str
    module: nn.Module
    parameters: Mapping[str, nn.Parameter]


class Apart(nn.ModuleDict):
    """Models on one rank, each divided into units by itself: the stages of a pipeline."""


def units(model: nn.Module) -> list[Unit]:
    """List a model's units, in the order of definition.

    Each child is a unit; in a list or a dict of modules, each member is a unit; in an `Apart`, each
    unit of a member is a unit. Modules without own parameters are left out.

    Raises:
        ValueError: a parameter belongs to the model itself, but to no child.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    found = []
    for name, module in pieces(model):
        own = [p for p in module.parameters() if id(p) in names]
        if own:
            found.append(Unit(name, module, {names.pop(id(p)): p for p in own}))
    if names:
        raise ValueError(
            f"parameters in no child of the model: {', '.join(names.values())}. Move them into a "
            "submodule"
        )
    return found


def in_backward() -> bool:
    """Whether autograd is running a backward in this thread."""
    return torch._C._current_graph_task_id() != -1


def pieces(module: nn.Module, prefix: str = ""):
    for name, child in module.named_children():
        several = isinstance(child, nn.ModuleDict | nn.ModuleList | nn.Sequential)
        if several or isinstance(module, Apart):
            yield from pieces(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child
