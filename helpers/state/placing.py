"""Make parts: a plain tensor on every rank, then stages, cuts, flat ranges, pending sums.

Each function gets a part and returns a new part, so that they compose:

    seat = Seat(Layout(dp=2, tp=2), rank=3)
    part = whole(seat, "mlp.up.weight", (128, 32))
    part = cut(seat, part, dim=0, axis="tp")     # rows 64:128, on ranks 1 and 3
    part = pending(seat, part, "dp")             # its gradient is a sum over ranks 1 and 3

A `Mesh` is a seat too. With one `Seat` per rank, a single process can make all parts of a layout.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from helpers.comm.mesh import Layout
from helpers.data.batch import part as share
from helpers.state.part import Cut, Part, Range, joined


class HasSeat(Protocol):
    """A rank and its layout: a `Mesh`, or a `Seat`."""

    layout: Layout
    rank: int


@dataclass(frozen=True)
class Seat:
    """One rank of a layout, without processes.

    Raises:
        ValueError: the layout has no such rank.
    """

    layout: Layout
    rank: int

    def __post_init__(self):
        self.layout.coordinates(self.rank)


def whole(seat: HasSeat, name: str, shape: Iterable[int]) -> Part:
    """Place the whole tensor on every rank."""
    return Part(name=name, shape=tuple(shape), holders=tuple(range(seat.layout.world_size)))


def only(seat: HasSeat, part: Part, axis: str, indices: Iterable[int]) -> Part | None:
    """Restrict the tensor to some indices of an axis.

    A layer is on its stage only: `only(…, "pp", [2])`. A tied embedding is on the first and the
    last stage.

    Returns:
        The part; None on a rank that does not hold the tensor.

    Raises:
        ValueError: the axis has no such index.
    """
    indices = set(indices)
    if missing := indices - set(range(seat.layout.size(axis))):
        raise ValueError(f"{part.name}: axis {axis} has no index {min(missing)}")
    there = [r for r in part.holders if seat.layout.coordinates(r)[axis] in indices]
    return replace(part, holders=there) if seat.rank in there else None


def cut(
    seat: HasSeat,
    part: Part,
    dim: int,
    axis: str,
    where: Sequence[Iterable[Range]] | None = None,
) -> Part:
    """Cut a dim along an axis. The holders are then the ranks that hold the same indices.

    Args:
        dim: of the plain tensor; a negative dim counts from the end.
        where: for each index of the axis, the ranges that it holds, in the order in which they are
            stored. Count them within the indices that the part holds so far. Two indices may hold
            the same ranges (two ranks that share a key head). None: as evenly as possible, like
            `data.batch.part`.

    Raises:
        ValueError: the part has a flat range already; `where` does not have one entry per index of
            the axis, leaves indices of the dim out, or has entries that overlap but are not equal.
    """
    dim = range(len(part.shape))[dim]
    size, parts, held = part.block[dim], seat.layout.size(axis), part.ranges(dim)
    if part.flat is not None:
        raise ValueError(f"{part.name} has a flat range already; cut first, then call `flat`")
    if where is None:
        places = [share(size, i, parts) for i in range(parts)]
        where = [((place.start, place.stop),) for place in places]
    where = [Cut(dim=dim, axes=(axis,), ranges=tuple(ranges)).ranges for ranges in where]
    covers(part.name, size, where, parts)
    place = seat.layout.coordinates(seat.rank)[axis]
    same = {index for index, ranges in enumerate(where) if ranges == where[place]}
    axes = next((old.axes for old in part.cuts if old.dim == dim), ()) + (axis,)
    own = Cut(dim=dim, axes=axes, ranges=within(held, where[place]))
    return replace(
        part,
        cuts=[*(old for old in part.cuts if old.dim != dim), own],
        holders=[r for r in part.holders if seat.layout.coordinates(r)[axis] in same],
    )


def flat(seat: HasSeat, part: Part, *axes: str, where: Sequence[Range] | None = None) -> Part:
    """Cut the block into flat ranges along axes, as ZeRO does over dp.

    Args:
        where: for each rank of these axes, its (start, stop) within the block, numbered row by row.
            Together they cover the block. None: as evenly as possible.

    Raises:
        ValueError: the part has a flat range already, or `where` does not cover the block.
    """
    numel, size = math.prod(part.block), seat.layout.size(*axes)
    if part.flat is not None:
        raise ValueError(f"{part.name} has a flat range already")
    if where is None:
        places = [share(numel, i, size) for i in range(size)]
        where = [(place.start, place.stop) for place in places]
    covers(part.name, numel, [joined([place]) for place in where], size)
    own = where[index(seat.layout, seat.rank, axes)]
    there = [r for r in part.holders if where[index(seat.layout, r, axes)] == own]
    return replace(part, flat=own, holders=there)


def index(layout: Layout, rank: int, axes: tuple[str, ...]) -> int:
    """The rank's position in its group along these axes."""
    place, found = layout.coordinates(rank), 0
    for axis in layout.known(axes):
        found = found * layout.size(axis) + place[axis]
    return found


def pending(seat: HasSeat, part: Part, *axes: str) -> Part:
    """Mark the gradient as a partial sum over the holders along these axes.

    The group consists of the holders whose coordinates differ from this rank's only in these axes.
    So for a tied embedding, "pp" means the first and the last stage; for a key head that several
    ranks share, "tp" means these ranks. If the group is this rank alone, the part does not change.
    """
    group = tuple(r for r in seat.layout.group_of(seat.rank, *axes) if r in part.holders)
    if len(group) == 1:
        return part
    return replace(part, pending=(*part.pending, group))


def within(held: Iterable[Range], chosen: Iterable[Range]) -> list[Range]:
    """Convert ranges that count within `held` to plain indices.

    `within([(0, 4), (8, 12)], [(2, 6)])` is [(2, 4), (8, 10)].
    """
    found = []
    for start, stop in chosen:
        offset = 0
        for first, last in held:
            low, high = max(start - offset, 0), min(stop - offset, last - first)
            if low < high:
                found.append((first + low, first + high))
            offset += last - first
    return found


def covers(name: str, size: int, where: Sequence[Sequence[Range]], parts: int):
    """Check that every index is in exactly one entry. Entries may be repeated."""
    if len(where) != parts:
        raise ValueError(f"{name}: `where` has {len(where)} entries, but the axes have {parts}")
    distinct = {tuple(ranges) for ranges in where}
    stop = 0
    for first, last in sorted(r for ranges in distinct for r in ranges):
        if first != stop:
            raise ValueError(
                f"{name}: {where} misses or repeats index {min(first, stop)}. It must cover 0 to "
                f"{size - 1}; two entries may be equal, but must not overlap otherwise"
            )
        stop = last
    if stop != size:
        raise ValueError(f"{name}: {where} covers {stop} indices of {size}")
