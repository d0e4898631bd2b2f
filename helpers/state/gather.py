"""Gather the parts of all ranks into whole tensors, under their plain names, on every rank."""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from helpers.state.all_parts import AllParts
from helpers.state.reshard import reshard


def full(
    parts: AllParts,
    local: Mapping[str, torch.Tensor | None],
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """Gather every tensor whole. Every rank of the world calls it and gets a copy of each.

    It reshards to the layout in which every rank holds everything. Each rank keeps the numbers that
    it already has, so the result shows whether a replica has drifted.

    Args, raises: as `reshard`.
    """
    return reshard(parts, local, parts.whole, group, device)


def full_gradients(
    parts: AllParts,
    gradients: Mapping[str, torch.Tensor | None],
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """Gather every gradient whole, by plain name. Every rank of the world calls it.

    Returns:
        Copies, of the tensors that have a gradient.

    Raises:
        ValueError: a sum is pending; and as `reshard` raises.
    """
    refuse_pending(parts)
    return full(parts, gradients, group, device)


def refuse_pending(parts: AllParts):
    """Check that no sum is pending.

    Raises:
        ValueError: a sum is pending. All ranks know all parts, so all ranks raise together.
    """
    for own in parts.ranks:
        for part in own.values():
            if part.pending:
                raise ValueError(
                    f"the gradient of {part} is still a partial sum; call `complete` first"
                )
