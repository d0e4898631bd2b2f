"""How parts are made: a plain tensor on every rank, then stages, cuts, flat ranges, pending sums.

Each function takes a part and returns another, so that ways to train compose:

    seat = Seat(Layout(dp=2, tp=2), rank=3)
    part = whole(seat, "mlp.up.weight", (128, 32))
    part = cut(seat, part, dim=0, axis="tp")     # rows 64:128, on ranks 1 and 3
    part = pending(seat, part, "dp")             # its gradient is a sum over ranks 1 and 3

A `Mesh` is a seat too. Nothing here needs processes: give every rank its seat in turn, and one
process sees all parts of a layout.
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
    """Every rank holds the whole tensor."""
    return Part(name=name, shape=tuple(shape), holders=tuple(range(seat.layout.world_size)))


def only(seat: HasSeat, part: Part, axis: str, indices: Iterable[int]) -> Part | None:
    """The tensor is on some indices of an axis alone: a layer on its stage, `only(…, "pp", [2])`;
    a tied embedding on the first and the last.

    Returns:
        The part; None on a rank that does not hold the tensor.
    """
    indices = set(indices)
    if missing := indices - set(range(seat.layout.size(axis))):
        raise ValueError(f"{part.name}: {axis} has no index {min(missing)}")
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
        dim: of the plain tensor; a negative one counts from the end.
        where: for each index of the axis the ranges that it holds, in the order in which they are
            stored, counted within what the part holds so far. Two indices may hold the same ranges
            (two ranks that share a key head). None: as equal as can be, like `data.batch.part`.

    Raises:
        ValueError: `where` has not one entry for each index, leaves indices out, or has entries
            that overlap without being equal.
    """
    dim = range(len(part.shape))[dim]
    size, parts, held = part.block[dim], seat.layout.size(axis), part.ranges(dim)
    if part.flat is not None:
        raise ValueError(f"{part.name}: cut before the flat range, which numbers what is left")
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
        where: for each rank of these axes its (start, stop) within the block, numbered row by row;
            together they are the whole block. None: as equal as can be.
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
    """The rank's place among those that share these axes with it."""
    place, found = layout.coordinates(rank), 0
    for axis in layout.known(axes):
        found = found * layout.size(axis) + place[axis]
    return found


def pending(seat: HasSeat, part: Part, *axes: str) -> Part:
    """The gradient is a partial sum over the holders that differ from this rank in these axes only.

    So "pp" means the first and the last stage for a tied embedding, and "tp" the ranks with the
    same key head where several share one. Nothing changes if this rank is the only one.
    """
    group = tuple(r for r in seat.layout.group_of(seat.rank, *axes) if r in part.holders)
    if len(group) == 1:
        return part
    return replace(part, pending=(*part.pending, group))


def within(held: Iterable[Range], chosen: Iterable[Range]) -> list[Range]:
    """Ranges counted within `held` (its indices numbered from 0 in their order), in plain indices.

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
    """Check that every index is in an entry, and in one only, where entries may be repeated."""
    if len(where) != parts:
        raise ValueError(f"{name}: {len(where)} places for {parts} ranks of the axes")
    distinct = {tuple(ranges) for ranges in where}
    stop = 0
    for first, last in sorted(r for ranges in distinct for r in ranges):
        if first != stop:
            raise ValueError(
                f"{name}: {where} must hold every index from 0 to {size - 1}, and two ranks the "
                f"same ranges or different ones; see index {min(first, stop)}"
            )
        stop = last
    if stop != size:
        raise ValueError(f"{name}: {where} holds indices up to {stop}, of {size}")
