"""Complete pending sums of gradients over groups of ranks; the norm of the plain gradient."""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from helpers.comm.collectives import recursive_doubling_all_reduce
from helpers.comm.mesh import Layout, Mesh
from helpers.comm.messages import Peers, in_a_row
from helpers.comm.transport import GroupTransport, coalesced
from helpers.runtime.proof import prove
from helpers.state.all_parts import AllParts
from helpers.state.facts import carrier
from helpers.state.full_state import refuse_pending
from helpers.state.part import Part
from helpers.state.pieces import pieces
from helpers.state.slicing import fits, same_keys

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # dtypes of gradients

Groups = Mapping[tuple[int, ...], dist.ProcessGroup]


def make_groups(mesh: Mesh, parts: AllParts) -> Groups:
    """Make the process groups of this rank's pending sums, by their ranks.

    It reuses the mesh's groups, and makes the missing groups (the first and the last stage). Every
    rank of the world calls it once, with the same parts: groups cost memory and connections.
    """
    ready = {}
    for axes in [(axis,) for axis in mesh.layout.axes] + list(mesh.together) + [mesh.layout.axes]:
        for ranks in mesh.layout.groups(*axes):
            ready[tuple(ranks)] = axes
    wanted = {group for own in parts.ranks for part in own.values() for group in part.pending}
    made = {}
    for ranks in sorted(wanted):  # all ranks make all groups, in the same order
        if ranks in ready:
            if mesh.rank in ranks:
                made[ranks] = mesh.group(*ready[ranks])
            continue
        group = dist.new_group(list(ranks), group_desc=described(mesh.layout, ranks))
        prove(group)
        if mesh.rank in ranks:
            made[ranks] = group
    return made


def described(layout: Layout, ranks: tuple[int, ...]) -> str | None:
    """Describe a group as `make_mesh` does, "mesh_dp_ep", if it is along axes of the mesh."""
    places = [layout.coordinates(rank) for rank in ranks]
    axes = [axis for axis in layout.axes if len({place[axis] for place in places}) > 1]
    same = axes and tuple(layout.group_of(ranks[0], *axes)) == ranks
    return "mesh_" + "_".join(axes) if same else None


@torch.no_grad()
def complete(
    parts: Mapping[str, Part],
    gradients: Mapping[str, torch.Tensor | None],
    groups: Groups,
    device: torch.device | str = "cpu",
) -> tuple[dict[str, Part], dict[str, torch.Tensor | None]]:
    """Sum every gradient, in place, over the groups in which it is pending.

    Every rank of the world calls it. It makes the sums of a part one after the other, in the part's
    order. Small gradients of one group share a message. If this rank has no gradient but another
    member has (this rank got no data), this rank gets the sum as a new tensor. A gradient that no
    member has stays None.

    Args:
        parts, gradients: this rank's parts and gradients, by the same keys.
        groups: from `make_groups`.
        device: of new tensors.

    Returns:
        The parts, with no sum pending, and the gradients. Use these parts from now on: the old
        parts would make every sum again.

    Raises:
        ValueError: the keys differ; a gradient does not have its part's shape; its dtype is not in
            FLOATS, or differs between ranks.
        KeyError: `make_groups` did not get these parts, so a group is missing.
    """
    same_keys(parts, gradients, "gradient")
    for key, gradient in gradients.items():
        if gradient is None:
            continue
        fits(parts[key], gradient)
        if gradient.dtype not in FLOATS:
            raise ValueError(
                f"the gradient of {parts[key].name} is of {gradient.dtype}; it must be one of "
                f"{FLOATS}"
            )
    result = dict(gradients)
    for ranks, keys in rounds(parts):
        group = groups[ranks]
        fill_up(parts, keys, result, group, device)
        for together in coalesced(result[key] for key in keys if result[key] is not None):
            sum_over(group, together)
    return {key: part.completed() for key, part in parts.items()}, result


def rounds(parts: Mapping[str, Part]) -> Iterator[tuple[tuple[int, ...], list[str]]]:
    """Yield (group, keys) in an order that cannot deadlock: the same on all ranks.

    First every part's first sum, then every part's second sum, which adds the results of the first.
    Within a turn, by group; within a group, by tensor.
    """
    turns: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for key, part in parts.items():
        if part.numel:
            for turn, group in enumerate(part.pending):
                turns.setdefault((turn, group), []).append(key)
    for (_, group), keys in sorted(turns.items()):
        yield group, sorted(keys, key=lambda key: (parts[key].name, pieces(parts[key])[0].box))


def fill_up(parts: Mapping[str, Part], keys: list[str], gradients: dict, group, device):
    """Fill in zeros if this rank has no gradient but another member of the group has."""
    own = [0 if gradients[key] is None else FLOATS.index(gradients[key].dtype) + 1 for key in keys]
    # One small all-reduce per step finds the highest and the lowest dtype code of each gradient.
    # The lowest is the maximum of minus the code; a missing gradient (0) does not count there.
    row = torch.tensor([*own, *(-code or -len(FLOATS) - 1 for code in own)]).to(carrier(group))
    recursive_doubling_all_reduce(row, ReduceOp.MAX, group)
    for key, high, low in zip(keys, *row.view(2, -1).tolist(), strict=True):
        if high and high != -low:
            dtypes = sorted(str(FLOATS[code - 1]) for code in (high, -low))
            raise ValueError(
                f"gradients of {parts[key].name} have different dtypes on different ranks: {dtypes}"
            )
        if high and gradients[key] is None:
            shape = parts[key].local_shape
            gradients[key] = torch.zeros(shape, dtype=FLOATS[high - 1], device=device)


def sum_over(group: dist.ProcessGroup, tensors: list[torch.Tensor]):
    """Sum these tensors over a group, in place, as one message."""
    device = tensors[0].device
    row = torch.cat([in_a_row(tensor) for tensor in tensors]).to(carrier(group, device))
    GroupTransport(group).all_reduce(row).wait()
    for tensor, own in zip(tensors, row.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(own.view(tensor.shape))


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
    kinds = {torch.float64: {}, torch.float32: {}}  # the dtype of the sum -> number -> gradient
    for number, region in enumerate(regions):
        holders = list(region.keys)
        if holders[number % len(holders)] == rank:
            gradient = gradients.get(region.keys[rank])
            if gradient is not None:
                wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
                kinds[wide][number] = gradient
    # A few launches on a GPU, not two for each gradient; and no list of numbers to copy there.
    row = [torch.zeros((), dtype=torch.float64, device=here)] * len(regions)
    for wide, own in kinds.items():
        if own:
            found = torch.stack(torch._foreach_norm(list(own.values()), 2, dtype=wide)).double()
            for number, norm in zip(own, found.unbind(), strict=True):
                row[number] = norm
    return torch.stack(row) if row else torch.zeros(0, dtype=torch.float64, device=here)
