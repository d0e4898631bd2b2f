"""Ranks on named axes: which of them share an axis (Layout), and their process groups (Mesh)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from helpers.runtime.proof import prove

ROWS = 64  # of a grid that are shown


@dataclass(frozen=True, init=False, repr=False)
class Layout:
    """Which rank sits where: `Layout(dp=2, tp=4)` puts 8 ranks on a grid. Needs no processes.

    The axes stand from the slowest to the fastest: neighbours on the last axis are neighbours in
    rank, and so, usually, on one machine. Put the axis that talks most there (tp). Any names will
    do; this course says dp, pp, cp, tp. An axis may have size 1.

    Attributes:
        axes: the names.
        shape: how many ranks lie along each.

    Raises:
        ValueError: a size is no positive whole number, or there is no axis.
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
        """How many ranks share these axes: the product of their sizes."""
        return math.prod(self.shape[self.axes.index(axis)] for axis in self.known(axes))

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank sits: {axis: index}."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"there is no rank {rank} in {self.title()}")
        place = []
        for size in reversed(self.shape):
            rank, index = divmod(rank, size)
            place.append(index)
        return dict(zip(self.axes, reversed(place), strict=True))

    def rank(self, **coordinates: int) -> int:
        """Who sits there; an axis that is not named counts as 0."""
        self.known(coordinates)
        rank = 0
        for axis, size in zip(self.axes, self.shape, strict=True):
            index = coordinates.get(axis, 0)
            if not 0 <= index < size:
                raise ValueError(f"{axis}={index} lies outside {self.title()}")
            rank = rank * size + index
        return rank

    def groups(self, *axes: str) -> list[list[int]]:
        """The ranks in groups: those of a group differ in these axes and in nothing else.

        `groups("tp")` are the tensor-parallel groups; `groups("dp", "cp")` average the gradients
        when a sequence is cut too. Each rank is in exactly one group, in order of rank.
        """
        axes = self.known(axes)
        places = map(self.coordinates, range(self.world_size))
        firsts = [rank for rank, place in enumerate(places) if not any(place[a] for a in axes)]
        return [self.group_of(rank, *axes) for rank in firsts]

    def group_of(self, rank: int, *axes: str) -> list[int]:
        """The ranks that share these axes with `rank`, itself among them."""
        axes, place = self.known(axes), self.coordinates(rank)
        fixed = {axis: index for axis, index in place.items() if axis not in axes}
        ranks = [self.rank(**fixed)]  # the first; the others lie further along each axis
        for axis in axes:
            stride = math.prod(self.shape[self.axes.index(axis) + 1 :])
            ranks = [first + stride * i for first in ranks for i in range(self.size(axis))]
        return ranks

    def known(self, axes: Iterable[str]) -> tuple[str, ...]:
        """These axes, in the layout's order.

        Raises:
            ValueError: one is not in the layout.
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
        """The ranks as text: the last axis runs across, the others down."""
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
    """A layout on running ranks, as one of them sees it. `make_mesh` makes it.

    Attributes:
        layout: who sits where.
        rank: this rank, in the world.
        device_mesh: PyTorch's own, for FSDP2, DTensor and the like.
        together: the groups along several axes that were asked for.
    """

    layout: Layout
    rank: int
    device_mesh: DeviceMesh
    together: dict[tuple[str, ...], dist.ProcessGroup]

    def group(self, *axes: str) -> dist.ProcessGroup:
        """The process group of the ranks that share these axes with this one.

        Raises:
            ValueError: an axis is not in the layout, or these axes have no group together.
        """
        axes = self.layout.known(axes)
        if len(axes) == 1:
            return self.device_mesh.get_group(axes[0])
        if axes == self.layout.axes:
            return dist.group.WORLD
        if axes not in self.together:
            # Making it here would need every rank to come here: it might hang, so it is refused.
            raise ValueError(f"{axes} have no group together: make_mesh(…, together=[{axes}])")
        return self.together[axes]

    def ranks(self, *axes: str) -> list[int]:
        """Who is in that group: ranks of the world."""
        return self.layout.group_of(self.rank, *axes)

    def size(self, *axes: str) -> int:
        """How many are in that group."""
        return self.layout.size(*axes)

    def index(self, *axes: str) -> int:
        """This rank's place in that group."""
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

    Groups cost memory and connections: make a mesh once, and on a Cluster keep it in
    `worker.state`.

    Args:
        layout: who sits where; all ranks of the world have a seat.
        device: where the tensors belong that will travel: `worker.device`.
        together: axes that need a group in common, besides one each: `[("dp", "cp")]`.

    Raises:
        ValueError: the sizes' product is not the number of ranks; an unknown axis.
        RuntimeError: there are no ranks yet; another process answered in place of one.
    """
    if not dist.is_initialized():
        raise RuntimeError("a mesh needs ranks: make it inside a function that `launch` runs")
    ranks = dist.get_world_size()
    if layout.world_size != ranks:
        product = layout.world_size
        raise ValueError(f"the sizes of {layout.title()} multiply to {product}, for {ranks} ranks")
    several = [layout.known(axes) for axes in together]  # before anything is made
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
    return Mesh(layout, dist.get_rank(), device_mesh, made)
