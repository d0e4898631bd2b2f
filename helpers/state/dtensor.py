"""Parts as DTensors, where DTensor can represent them."""

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from helpers.comm.mesh import Layout, Mesh
from helpers.state.part import Part, Range
from helpers.state.slicing import fits


def placements(layout: Layout, rank: int, part: Part) -> dict[str, Placement] | None:
    """Translate a part to DTensor's placements: mesh axis -> Shard(dim) or Replicate.

    If only some indices of an axis hold the tensor (a stage, or two stages with a tied embedding),
    the axis is left out. The DTensor is then on the rank's own slice of the mesh.

    DTensor cuts evenly, in pieces of ceil(size / ranks): the last pieces are smaller or empty. It
    supports no flat ranges and no chosen ranges, and cuts a dim in the order of the mesh's axes.

    Returns:
        None if DTensor cannot represent the part.
    """
    if part.flat is not None:
        return None
    found: dict[str, Placement] = {}
    for cut in part.cuts:
        in_order = cut.axes == layout.known(cut.axes)
        if not in_order or cut.ranges != even(layout, rank, cut.axes, part.shape[cut.dim]):
            return None
        found |= {axis: Shard(cut.dim) for axis in cut.axes}
    for axis in layout.axes:
        if axis not in found and set(layout.group_of(rank, axis)) <= set(part.holders):
            found[axis] = Replicate()
    return {axis: found[axis] for axis in layout.axes if axis in found}


def even(layout: Layout, rank: int, axes: tuple[str, ...], size: int) -> tuple[Range, ...]:
    """The indices that DTensor gives a rank, when it cuts a dim of this size along these axes."""
    place, start, stop = layout.coordinates(rank), 0, size
    for axis in axes:
        step = -(-(stop - start) // layout.size(axis))
        start = min(start + place[axis] * step, stop)
        stop = min(start + step, stop)
    return ((start, stop),) if start < stop else ()


def as_dtensor(mesh: Mesh, part: Part, local: torch.Tensor) -> torch.Tensor:
    """Wrap the local tensor as a DTensor of the plain shape, on the same memory. No messages.

    Returns:
        The DTensor. If the rank holds the tensor whole and no axis shares it, the local tensor.

    Raises:
        ValueError: DTensor cannot represent the part; or the tensor does not have the part's shape.
    """
    fits(part, local)
    found = placements(mesh.layout, mesh.rank, part)
    if found is None:
        raise ValueError(
            f"DTensor cannot represent {part}: DTensor cuts whole dims evenly, in mesh order"
        )
    if not found:
        return local
    strides = torch.empty(part.shape, device="meta").stride()
    return DTensor.from_local(
        local.detach(),
        mesh.device_mesh[tuple(found)],
        list(found.values()),
        run_check=False,
        shape=torch.Size(part.shape),
        stride=strides,
    )
