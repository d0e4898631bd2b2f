"""A model in units: the pieces that an owner may gather, free, load or store as one."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, eq=False)
class Unit:
    """A piece of a model that runs as one call.

    Attributes:
        name: of the module: "blocks.3".
        module: its call is the unit's forward.
        parameters: by their names in the whole model. One that several units use (a tied one)
            belongs to the first.
    """

    name: str
    module: nn.Module
    parameters: Mapping[str, nn.Parameter]


def units(model: nn.Module) -> list[Unit]:
    """The units of a model, in the order of its definition: its children, and those of a list or a
    dict of modules one by one. Modules without parameters of their own are left out."""
    names = {id(p): name for name, p in model.named_parameters()}
    found = []
    for name, module in pieces(model):
        own = [p for p in module.parameters() if id(p) in names]
        if own:
            found.append(Unit(name, module, {names.pop(id(p)): p for p in own}))
    if names:
        raise ValueError(f"in no child of the model: {', '.join(names.values())}")
    return found


def pieces(module: nn.Module, prefix: str = ""):
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleDict | nn.ModuleList | nn.Sequential):
            yield from pieces(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child
