"""How parts are stored in a checkpoint: as DTensors where possible, else in even rows."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from helpers.comm.mesh import Layout, Mesh, make_mesh
from helpers.state.all_parts import AllParts
from helpers.state.part import Part, Range
from helpers.state.placing import Seat, cut, whole
from helpers.state.reshard import existing, reshard
from helpers.state.slicing import fits


class Storage:
    """Convert this rank's tensors to the stored tensors, by plain name, and back.

    A tensor that DTensor can represent is stored in its own layout, without a copy. Any other
    tensor (flat ranges, chosen or uneven cuts) is resharded to even rows over all ranks. Every rank
    of the world makes a `Storage` and calls its methods.

    Args:
        mesh: of the ranks; None for a single process.
        parts: of all ranks.
        group: of all ranks, for the methods' messages; None: the default group.
    """

    def __init__(self, mesh: Mesh | None, parts: AllParts, group: dist.ProcessGroup | None = None):
        self.mesh, self.parts, self.group = mesh, parts, group
        if mesh is None:  # one process has everything
            self.rank, self.device, self.layouts = 0, "cpu", [(None, parts, parts)]
            return
        direct = [name for name in parts.shapes if representable(mesh.layout, parts, name)]
        self.rank, self.device = mesh.rank, mesh.device_mesh.device_type
        same, others = parts.named(direct), parts.named(parts.shapes.keys() - set(direct))
        self.layouts = [(mesh, same, same)]  # mesh of the DTensors, own parts, stored parts
        if others.shapes:
            rows = make_mesh(Layout(rows=len(parts.ranks)), self.device)
            self.layouts.append((rows, others, in_rows(others)))

    def stored(self, local: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Convert local tensors to stored tensors, by plain name: DTensors, or whole tensors.

        Raises:
            ValueError: as `existing` raises.
        """
        found = {}
        for mesh, parts, stored in self.layouts:
            mine = {key: local[key] for key in parts.ranks[self.rank] if key in local}
            if stored is not parts:
                mine = reshard(parts, mine, stored, self.group, self.device)
            elif mesh is not None:
                existing(parts, mine, self.group)
            for key, part in stored.ranks[self.rank].items():
                if key in mine:
                    found[part.name] = on_mesh(mesh, part, mine[key])
        return found

    def empty(self, dtypes: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
        """Allocate what this rank stores of these plain names, without values."""
        return {
            part.name: on_mesh(mesh, part, self.room(part, dtypes[part.name]))
            for mesh, _, stored in self.layouts
            for part in stored.ranks[self.rank].values()
            if part.name in dtypes
        }

    def room(self, part: Part, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(part.local_shape, dtype=dtype, device=self.device)

    def local(self, stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Convert stored tensors back to this rank's tensors, by key.

        All ranks that store a name pass it.
        """
        found = {}
        for _, parts, kept in self.layouts:
            mine = {
                key: getattr(stored[part.name], "to_local", lambda own=stored[part.name]: own)()
                for key, part in kept.ranks[self.rank].items()
                if part.name in stored
            }
            found |= mine if kept is parts else reshard(kept, mine, parts, self.group, self.device)
        return found


def on_mesh(mesh: Mesh | None, part: Part, local: torch.Tensor) -> torch.Tensor:
    return local.detach() if mesh is None else as_dtensor(mesh, part, local)


def representable(layout: Layout, parts: AllParts, name: str) -> bool:
    """Whether DTensor can represent a tensor on every rank, with at most one DTensor per rank."""
    for rank, keys in enumerate(parts.keys):
        here = [parts.ranks[rank][key] for key in keys.get(name, ())]
        if len(here) > 1 or any(placements(layout, rank, part) is None for part in here):
            return False
    return True


def in_rows(parts: AllParts) -> AllParts:
    """Cut every tensor along its first dim over all ranks, as DTensor cuts.

    A tensor without dims is whole on all ranks.
    """
    world = Layout(rows=len(parts.ranks))
    everyone = range(world.world_size)

    def rows(rank: int, name: str, shape: tuple[int, ...]) -> Part:
        seat = Seat(world, rank)
        part = whole(seat, name, shape)
        where = [even(world, other, ("rows",), shape[0]) for other in everyone] if shape else None
        return cut(seat, part, 0, "rows", where) if shape else part

    return AllParts(
        {name: rows(rank, name, shape) for name, shape in parts.shapes.items()} for rank in everyone
    )


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
    for own in part.cuts:
        in_order = own.axes == layout.known(own.axes)
        if not in_order or own.ranges != even(layout, rank, own.axes, part.shape[own.dim]):
            return None
        found |= {axis: Shard(own.dim) for axis in own.axes}
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
