"""Ranks on named axes, as pure data: the place of each rank, and which ranks form a group."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

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
