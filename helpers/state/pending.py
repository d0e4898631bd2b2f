"""Pending sums: gradients that are partial sums over groups of ranks, completed once."""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from helpers.comm.collectives import recursive_doubling_all_reduce
from helpers.comm.mesh import Mesh
from helpers.comm.messages import in_a_row
from helpers.comm.transport import GroupTransport, coalesced
from helpers.runtime.proof import prove
from helpers.state.all_parts import AllParts
from helpers.state.facts import carrier
from helpers.state.part import Part
from helpers.state.pieces import pieces
from helpers.state.slicing import fits

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # what gradients are of

Groups = Mapping[tuple[int, ...], dist.ProcessGroup]


def make_groups(mesh: Mesh, parts: AllParts) -> Groups:
    """The process groups of all pending sums that this rank takes part in, by their ranks.

    Those of the mesh are taken from it; the others (the first and the last stage) are made. Every
    rank of the world calls it, once, with the same parts: groups cost memory and connections.
    """
    ready = {}
    for axes in [(axis,) for axis in mesh.layout.axes] + list(mesh.together) + [mesh.layout.axes]:
        for ranks in mesh.layout.groups(*axes):
            ready[tuple(ranks)] = axes
    wanted = {group for own in parts.ranks for part in own.values() for group in part.pending}
    made = {}
    for ranks in sorted(wanted):  # in one order on all ranks, members or not
        if ranks in ready:
            if mesh.rank in ranks:
                made[ranks] = mesh.group(*ready[ranks])
            continue
        group = dist.new_group(list(ranks))
        prove(group)
        if mesh.rank in ranks:
            made[ranks] = group
    return made


@torch.no_grad()
def complete(
    parts: Mapping[str, Part],
    gradients: Mapping[str, torch.Tensor | None],
    groups: Groups,
    device: torch.device | str = "cpu",
) -> tuple[dict[str, Part], dict[str, torch.Tensor | None]]:
    """Sum every gradient over the groups in which it is pending, in place.

    Every rank of the world calls it. The sums of a part are made one after the other, in the order
    in which the part names them; small gradients of one group travel together. A rank that has no
    gradient where another member has one (it got no data) gets that sum as a new tensor; a gradient
    that no member has stays None.

    Args:
        parts, gradients: this rank's, by the same keys.
        groups: of `make_groups`.
        device: of new tensors.

    Returns:
        The parts, of which no sum is pending any more, and the gradients. Go on with these parts:
        with the old ones every sum would be made again.

    Raises:
        ValueError: keys that differ, a gradient of another shape than its part, of a dtype that is
            none of FLOATS, or of two dtypes on two ranks.
        KeyError: a group that `make_groups` did not see.
    """
    if odd := parts.keys() ^ gradients.keys():
        raise ValueError(f"{min(odd)!r} has a part and no gradient, or a gradient and no part")
    for key, gradient in gradients.items():
        if gradient is None:
            continue
        fits(parts[key], gradient)
        if gradient.dtype not in FLOATS:
            raise ValueError(f"the gradient of {parts[key].name} is of {gradient.dtype}")
    result = dict(gradients)
    for ranks, keys in rounds(parts):
        group = groups[ranks]
        fill_up(parts, keys, result, group, device)
        for together in coalesced(result[key] for key in keys if result[key] is not None):
            sum_over(group, together)
    return {key: part.completed() for key, part in parts.items()}, result


def rounds(parts: Mapping[str, Part]) -> Iterator[tuple[tuple[int, ...], list[str]]]:
    """(group, keys) in an order in which no two ranks wait for each other.

    First every part's first sum, then every part's second: a second sum adds up what the first one
    left on each member. Within a turn by group, and within a group by tensor.
    """
    turns: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for key, part in parts.items():
        if part.numel:
            for turn, group in enumerate(part.pending):
                turns.setdefault((turn, group), []).append(key)
    for (_, group), keys in sorted(turns.items()):
        yield group, sorted(keys, key=lambda key: (parts[key].name, pieces(parts[key])[0].box))


def fill_up(parts: Mapping[str, Part], keys: list[str], gradients: dict, group, device):
    """Zeros where another member of the group has a gradient and this rank has none."""
    own = [0 if gradients[key] is None else FLOATS.index(gradients[key].dtype) + 1 for key in keys]
    # One small message in each step: of each gradient the highest code, and of minus the code
    # (0 counts as none) the highest too, so that both ends of the dtypes are seen by all.
    row = torch.tensor([*own, *(-code or -len(FLOATS) - 1 for code in own)]).to(carrier(group))
    recursive_doubling_all_reduce(row, ReduceOp.MAX, group)
    for key, high, low in zip(keys, *row.view(2, -1).tolist(), strict=True):
        if high and high != -low:
            dtypes = sorted(str(FLOATS[code - 1]) for code in (high, -low))
            raise ValueError(f"gradients of {parts[key].name} are of {dtypes}")
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
