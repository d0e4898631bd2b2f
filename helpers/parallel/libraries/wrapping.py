"""Choose the units of `fully_shard`: which modules gather and free their parameters together.

A policy is a function of the model. It returns the units below the model: a module, or a list of
modules that form one unit. The model itself is always a unit too, the **root**, with every
parameter that is in no other unit.
"""

from collections.abc import Callable, Sequence

from torch import nn

from helpers.parallel.units import units

Policy = Callable[[nn.Module], Sequence[nn.Module | list[nn.Module]]]


def each_block(model: nn.Module) -> list[nn.Module]:
    """Make each block a unit: each member of the model's lists and dicts of modules."""
    return [unit.module for unit in units(model) if "." in unit.name]


def one_unit(model: nn.Module) -> list[nn.Module]:
    """Make no unit below the model. The root then has all parameters."""
    return []


def groups_of(blocks: int) -> Policy:
    """Return the policy that makes each `blocks` blocks, in order, one unit.

    Raises:
        ValueError: `blocks` is below 1.
    """
    if blocks < 1:
        raise ValueError(f"a unit needs at least one block, not {blocks}")

    def policy(model: nn.Module) -> list[list[nn.Module]]:
        every = each_block(model)
        return [every[at : at + blocks] for at in range(0, len(every), blocks)]

    return policy


def of_type(*types: type[nn.Module]) -> Policy:
    """Return the policy that makes each module of these classes a unit, inner modules first.

    FSDP1 calls this `transformer_auto_wrap_policy`, or `ModuleWrapPolicy`.

    Raises:
        ValueError: from the policy, if the model has no such module. All parameters would be in one
            unit, without a warning.
    """

    def policy(model: nn.Module) -> list[nn.Module]:
        found = [m for m in model.modules() if isinstance(m, types) and m is not model]
        if not found:
            names = ", ".join(kind.__name__ for kind in types)
            raise ValueError(f"{type(model).__name__} contains no {names}: no unit would be made")
        return found[::-1]  # `modules` lists an outer module before its inner modules

    return policy
