"""Compute the norm of the plain model's gradients from the parts of all ranks, and clip by it."""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from helpers.comm.messages import Peers
from helpers.comm.transport import GroupTransport
from helpers.state.all_parts import AllParts
from helpers.state.facts import carrier
from helpers.state.full_state import refuse_pending


@torch.no_grad()
def global_norm(
    parts: AllParts,
    gradients: Mapping[str, torch.Tensor | None],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Compute the Euclidean norm of all gradients together. Each plain number counts once.

    Every rank of the world calls it, and gets the same bits. One holder of each region computes the
    region's norm; the holders take turns. An all-reduce then gives every rank the norms of all
    regions, and each rank adds them in the same order. So replicas count once. The result depends
    on the regions, not on which ranks hold them.

    Within a region, float64 gradients are summed in float64, all others in float32. The regions
    are added in float64.

    Args:
        parts: the parts of all ranks, with no sum pending.
        gradients: this rank's gradients by key. None or a missing key counts as zero.

    Returns:
        A float64 tensor without dims, on the device of this rank's gradients.

    Raises:
        ValueError: a sum is pending. The norm of a partial sum is not the norm of the sum.
    """
    refuse_pending(parts)
    own = norms(parts, gradients, Peers(group).rank)
    row = own.to(carrier(group, own.device))
    # Each sum has at most one term that is not zero, so it is exact in any order.
    GroupTransport(group).all_reduce(row).wait()
    return row.square().sum().sqrt().to(own.device)


def norms(parts: AllParts, gradients: Mapping[str, torch.Tensor | None], rank: int) -> torch.Tensor:
    """Compute this rank's share of the regions' norms: (regions,) float64, zero elsewhere."""
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
    """Scale all gradients, in place, so that their global norm is at most `most`.

    Every rank of the world calls it. Like `torch.nn.utils.clip_grad_norm_`, it multiplies them by
    most / (norm + 1e-6) if that is less than 1.

    Args:
        most: None leaves the gradients unchanged.

    Returns:
        The norm before clipping.

    Raises:
        ValueError: as `global_norm` raises.
    """
    norm = global_norm(parts, gradients, group)
    if most is not None:
        scale = (most / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients.values():
            if gradient is not None:
                gradient.mul_(scale.to(gradient.device))
    return norm
