"""Whole tensors under their plain names, on every rank, from the parts of all ranks."""

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
    """Gather every tensor whole. Every rank of the world calls it and gets all of them; copies.

    It is resharding to the layout in which every rank holds everything. A rank's own numbers stay
    its own: a replica that drifted away shows its drift.

    Args, raises: as `reshard`.
    """
    return reshard(parts, local, parts.whole, group, device)


def full_gradients(
    parts: AllParts,
    gradients: Mapping[str, torch.Tensor | None],
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """Gather every gradient whole, by plain name. Every rank of the world calls it; copies.

    Tensors without a gradient are left out.

    Raises:
        ValueError: a sum is pending; and as `reshard`.
    """
    refuse_pending(parts)
    return full(parts, gradients, group, device)


def refuse_pending(parts: AllParts):
    """Check that no sum is pending. All ranks know all parts, so that all of them raise or none.

    Raises:
        ValueError: a sum is pending.
    """
    for own in parts.ranks:
        for part in own.values():
            if part.pending:
                raise ValueError(f"gradients are partial sums still; `complete` them first: {part}")
