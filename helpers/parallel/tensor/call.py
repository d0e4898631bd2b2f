"""What a rule of the placement checker sees: an operation, and the placements of its inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

WHOLE, PARTIAL = "whole", "partial"
Placement = str | int  # WHOLE, PARTIAL, or the dim that is cut, counted from 0


class PlacementError(ValueError):  # an operator like + would hide a TypeError
    """An operation that is wrong for the placement of its inputs."""


@dataclass(frozen=True)
class Call:
    """An operation about to run: the placements and shapes of its tensors, in order."""

    name: str
    placements: list[Placement]
    shapes: list[tuple[int, ...]]
    args: tuple
    kwargs: Mapping

    def argument(self, index: int, name: str, default=None):
        """An argument that may be given by its place or by its name."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[index] if len(self.args) > index else default


def said(placement: Placement) -> str:
    return f"cut({placement})" if isinstance(placement, int) else placement
