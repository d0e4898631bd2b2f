"""The norm of all gradients of the plain model, from the parts of all ranks; and clipping by it."""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from helpers.comm.messages import Peers
from helpers.comm.transport import GroupTransport
from helpers.state.all_parts import AllParts
from helpers.state.facts import carrier
from helpers.state.gather import refuse_pending


@torch.no_grad()
def global_norm(
    parts: AllParts,
    gradients: Mapping[str, torch.Tensor | None],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """The Euclidean norm of all gradients together, each number of the plain model counted once.

    Every rank of the world calls it, and gets the same bits. Of the ranks that hold the same
    numbers one computes their norm; the holders take turns. A row with one norm for each region
    travels, and each rank adds it up in the same order. So replicas count once, and the result
    depends on which numbers lie together, not on which rank holds them.

    Within a region, float64 gradients are summed in float64, all others in float32; the regions
    are added up in float64.

    Args:
        parts: of all ranks, with no sum pending.
        gradients: this rank's, by key. None, or a key that is missing, counts as zero.

    Returns:
        A float64 tensor without dims, on the device of this rank's gradients.

    Raises:
        ValueError: a sum is pending. The norm of partial sums is not that of their sum.
    """
    refuse_pending(parts)
    own = norms(parts, gradients, Peers(group).rank)
    row = own.to(carrier(group, own.device))
    # All but one of the terms of each sum are zero: it is exact, in whatever order.
    GroupTransport(group).all_reduce(row).wait()
    return row.square().sum().sqrt().to(own.device)


def norms(parts: AllParts, gradients: Mapping[str, torch.Tensor | None], rank: int) -> torch.Tensor:
    """The norms that this rank computes: (regions,) float64, zero for those of other ranks."""
    here = next((g.device for g in gradients.values() if g is not None), torch.device("cpu"))
    regions = [region for same in parts.regions.values() for region in same]
    row = torch.zeros(len(regions), dtype=torch.float64, device=here)
    for number, region in enumerate(regions):
        holders = list(region.keys)
        if holders[number % len(holders)] == rank:
            gradient = gradients.get(region.keys[rank])
            if gradient is not None:
                wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
                row[number] = torch.linalg.vector_norm(gradient, dtype=wide)
    return row


@torch.no_grad()
def clip(
    parts: AllParts,
    gradients: Mapping[str, torch.Tensor | None],
    most: float | None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Scale all gradients, in place, so that their norm together is at most `most`.

    Every rank of the world calls it. As `torch.nn.utils.clip_grad_norm_`, they are multiplied by
    most / (norm + 1e-6) where that is less than 1.

    Args:
        most: None to leave them as they are.

    Returns:
        The norm before clipping.

    Raises:
        ValueError: as `global_norm`.
    """
    norm = global_norm(parts, gradients, group)
    if most is not None:
        scale = (most / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients.values():
            if gradient is not None:
                gradient.mul_(scale.to(gradient.device))
    return norm
