"""Ranks on named axes: a Layout places the ranks, a Mesh has their process groups."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from helpers.runtime.proof import prove

ROWS = 64  # rows of a grid to show


@dataclass(frozen=True, init=False, repr=False)
class Layout:
    """Place ranks on a grid: `Layout(dp=2, tp=4)` places 8 ranks. It needs no processes.

    The order of the axes is from the slowest to the fastest. Neighbours on the last axis have
    neighbouring ranks, and so are usually on one machine. Use the last axis for the most
    communication (tp). Any names are allowed; this course uses dp, pp, cp, tp. An axis may have
    size 1.

    Attributes:
        axes: the names.
        shape: how many ranks are along each axis.

    Raises:
        ValueError: a size that is not a positive whole number, or no axis.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]

    def __init__(self, **sizes: int):
        if not sizes:
            raise ValueError("a layout needs an axis: Layout(dp=4)")
        for axis, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{axis} must be a positive whole number, not {size!r}")
        object.__setattr__(self, "axes", tuple(sizes))  # the dataclass is frozen
        object.__setattr__(self, "shape", tuple(sizes.values()))

    @property
    def world_size(self) -> int:
        return math.prod(self.shape)

    def size(self, *axes: str) -> int:
        """Return how many ranks share these axes: the product of their sizes."""
        return math.prod(self.shape[self.axes.index(axis)] for axis in self.known(axes))

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the place of a rank: {axis: index}."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"there is no rank {rank} in {self.title()}")
        place = []
        for size in reversed(self.shape):
            rank, index = divmod(rank, size)
            place.append(index)
        return dict(zip(self.axes, reversed(place), strict=True))

    def rank(self, **coordinates: int) -> int:
        """Return the rank at these coordinates; an axis that is not named counts as 0."""
        self.known(coordinates)
        rank = 0
        for axis, size in zip(self.axes, self.shape, strict=True):
            index = coordinates.get(axis, 0)
            if not 0 <= index < size:
                raise ValueError(f"{axis}={index} is out of range for {self.title()}")
            rank = rank * size + index
        return rank

    def groups(self, *axes: str) -> list[list[int]]:
        """Return the groups of ranks that differ only in these axes.

        `groups("tp")` are the tensor-parallel groups. `groups("dp", "cp")` average the gradients
        when a sequence is cut too. Each rank is in exactly one group, and groups are in order of
        rank.
        """
        axes = self.known(axes)
        places = map(self.coordinates, range(self.world_size))
        firsts = [rank for rank, place in enumerate(places) if not any(place[a] for a in axes)]
        return [self.group_of(rank, *axes) for rank in firsts]

    def group_of(self, rank: int, *axes: str) -> list[int]:
        """Return the ranks that share these axes with `rank`, including `rank`."""
        axes, place = self.known(axes), self.coordinates(rank)
        fixed = {axis: index for axis, index in place.items() if axis not in axes}
        ranks = [self.rank(**fixed)]  # the first rank; then go along each axis
        for axis in axes:
            stride = math.prod(self.shape[self.axes.index(axis) + 1 :])
            ranks = [first + stride * i for first in ranks for i in range(self.size(axis))]
        return ranks

    def known(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return these axes in the layout's order.

        Raises:
            ValueError: an axis is not in the layout.
        """
        axes = tuple(axes)
        for axis in axes:
            if axis not in self.axes:
                raise ValueError(f"there is no axis {axis!r} in {self.title()}")
        return tuple(axis for axis in self.axes if axis in axes)

    def title(self) -> str:
        sizes = ", ".join(f"{a}={n}" for a, n in zip(self.axes, self.shape, strict=True))
        return f"Layout({sizes})"

    def grid(self) -> str:
        """Return the ranks as text: the last axis across, the others down."""
        *down, across = self.axes
        width = len(f"{across}={self.size(across) - 1}")
        rows = self.groups(across)
        names = [
            " ".join(f"{axis}={self.coordinates(row[0])[axis]}" for axis in down)
            for row in rows[:ROWS]
        ]
        indent = max(map(len, names))
        heads = [f"{across}={i}" for i in range(self.size(across))]
        lines = ["  ".join([" " * indent, *heads])]
        for name, row in zip(names, rows, strict=False):
            lines.append("  ".join([name.ljust(indent), *(str(rank).rjust(width) for rank in row)]))
        if len(rows) > ROWS:
            lines.append(f"… {len(rows) - ROWS} rows more")
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self):
        count = self.world_size
        return f"{self.title()}: {count} rank{'s' * (count != 1)}\n{self.grid()}"


@dataclass(frozen=True, eq=False)
class Mesh:
    """A layout on running ranks, from the view of one rank. Made by `make_mesh`.

    Attributes:
        layout: the place of every rank.
        rank: this rank, in the world.
        device_mesh: PyTorch's own mesh, for FSDP2, DTensor and others.
        together: the groups along several axes, as requested from `make_mesh`.
    """

    layout: Layout
    rank: int
    device_mesh: DeviceMesh
    together: dict[tuple[str, ...], dist.ProcessGroup]

    def group(self, *axes: str) -> dist.ProcessGroup:
        """Return the process group of the ranks that share these axes with this rank.

        Raises:
            ValueError: an axis is not in the layout, or no group along these axes together was
                requested.
        """
        axes = self.layout.known(axes)
        if len(axes) == 1:
            return self.device_mesh.get_group(axes[0])
        if axes == self.layout.axes:
            return dist.group.WORLD
        if axes not in self.together:
            # Making the group here could hang: every rank of the world would have to make it too.
            raise ValueError(f"{axes} have no common group: use make_mesh(…, together=[{axes}])")
        return self.together[axes]

    def ranks(self, *axes: str) -> list[int]:
        """Return the members of that group, as ranks of the world."""
        return self.layout.group_of(self.rank, *axes)

    def size(self, *axes: str) -> int:
        """Return the size of that group."""
        return self.layout.size(*axes)

    def index(self, *axes: str) -> int:
        """Return this rank's place in that group."""
        return self.ranks(*axes).index(self.rank)

    def __repr__(self):
        place = ", ".join(f"{a}={i}" for a, i in self.layout.coordinates(self.rank).items())
        return f"rank {self.rank} ({place}) of {self.layout!r}"


def make_mesh(
    layout: Layout,
    device: torch.device | str = "cpu",
    together: Iterable[Iterable[str]] = (),
) -> Mesh:
    """Make the process groups of every axis. Every rank calls it, with the same arguments.

    Groups cost memory and connections. So make a mesh once; on a Cluster keep it in `worker.state`.

    Args:
        layout: the place of every rank of the world.
        device: the device of the tensors to communicate: `worker.device`.
        together: axes that need a common group, besides a group each: `[("dp", "cp")]`.

    Raises:
        ValueError: the product of the sizes is not the number of ranks; an unknown axis.
        RuntimeError: no process group is initialized; another process answered in place of a rank.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "there are no ranks: call make_mesh inside a function that `launch` runs"
        )
    ranks = dist.get_world_size()
    if layout.world_size != ranks:
        product = layout.world_size
        raise ValueError(
            f"the product of the sizes of {layout.title()} is {product}: it must be {ranks}, the "
            "number of ranks"
        )
    several = [layout.known(axes) for axes in together]  # check the axes before making any group
    device_mesh = init_device_mesh(
        torch.device(device).type, layout.shape, mesh_dim_names=layout.axes
    )
    made = {}
    for axes in several:
        made[axes], _ = dist.new_subgroups_by_enumeration(
            layout.groups(*axes), group_desc="mesh_" + "_".join(axes)
        )
    for group in (*map(device_mesh.get_group, layout.axes), *made.values()):
        prove(group)
        if not on_gloo(group, device):
            connect(group, device)
    return Mesh(layout, dist.get_rank(), device_mesh, made)


def on_gloo(group: dist.ProcessGroup, device: torch.device | str) -> bool:
    """Whether gloo moves the tensors of this device within the group."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return backends.get(torch.device(device).type) == "gloo"


def connect(group: dist.ProcessGroup, device: torch.device | str):
    """Let NCCL connect the ranks of a group. Every rank of the group calls it.

    NCCL connects the ranks in a group's first collective, and until then the call blocks: also a
    call with `async_op=True`. So the first one may not be a call that some ranks make early.
    """
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        # The group's own method: a count of the program's collectives must not see this one.
        group.allreduce([torch.zeros(1, device=device)]).wait()
