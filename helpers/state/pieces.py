"""Index arithmetic: a part as boxes of the plain tensor, and boxes that two parts share.

A box is a (start, stop) for each dim. The ranges of a block form boxes. A flat range of the block
is a few boxes too: an incomplete row at each end and whole rows between, again in each dim. So no
table of indices is needed.
"""

import itertools
import math
from dataclasses import dataclass

import torch

from helpers.state.part import Part, Range

Box = tuple[Range, ...]


@dataclass(frozen=True)
class Piece:
    """A box of the plain tensor that a rank holds, and its place in the local tensor.

    Attributes:
        box: of the plain tensor.
        run: for a flat part, (offset in the local row, shape of the run); None for a block.
        inner: the same box within the local block, or within the run's shape.
    """

    box: Box
    run: tuple[int, tuple[int, ...]] | None
    inner: Box

    def of(self, local: torch.Tensor) -> torch.Tensor:
        """View the box's numbers in the local tensor, in the box's shape."""
        if self.run is not None:
            offset, shape = self.run
            local = local[offset : offset + math.prod(shape)].view(shape)
        return local[slices(self.inner)]  # local[()] if the tensor has no dims


def pieces(part: Part) -> list[Piece]:
    """Divide a part into pieces: each number is in one piece, and no piece is empty."""
    if part.numel == 0:
        return []
    if part.flat is None:
        everything = tuple((0, size) for size in part.block)
        return [Piece(box, None, inner) for box, inner in plain_boxes(part, everything)]
    found, offset = [], 0
    for rows in flat_boxes(part.block, *part.flat):
        shape = tuple(stop - start for start, stop in rows)
        for box, inner in plain_boxes(part, rows):
            found.append(Piece(box, (offset, shape), inside(inner, rows)))
        offset += math.prod(shape)
    return found


def flat_boxes(shape: tuple[int, ...], start: int, stop: int) -> list[Box]:
    """Express the numbers start:stop of a block, numbered row by row, as boxes in that order.

    `flat_boxes((3, 4), 2, 9)` gives row 0 from column 2, row 1, and row 2 up to column 1.
    """
    if start >= stop:
        return []
    if not shape:
        return [()]
    row = math.prod(shape[1:])  # numbers in one index of the first dim
    first, last = start // row, (stop - 1) // row
    if first == last:
        inner = flat_boxes(shape[1:], start - first * row, stop - first * row)
        return [((first, first + 1), *box) for box in inner]
    found = []
    if start > first * row:  # an incomplete row at the beginning
        found += flat_boxes(shape, start, (first + 1) * row)
        first += 1
    whole = stop // row  # rows below this one are complete
    if first < whole:
        found.append(((first, whole), *((0, size) for size in shape[1:])))
    if stop > whole * row:
        found += flat_boxes(shape, whole * row, stop)
    return found


def plain_boxes(part: Part, block_box: Box):
    """Yield (box of the plain tensor, the same box within the block) per combination of ranges."""
    dims = []
    for dim, (low, high) in enumerate(block_box):
        offset, here = 0, []
        for first, last in part.ranges(dim):
            a, b = max(low, offset), min(high, offset + last - first)
            if a < b:
                here.append(((first + a - offset, first + b - offset), (a, b)))
            offset += last - first
        dims.append(here)
    for chosen in itertools.product(*dims):
        yield tuple(plain for plain, _ in chosen), tuple(inner for _, inner in chosen)


def common(one: Box, other: Box) -> Box | None:
    """The box that both boxes share; None if they share nothing."""
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return found if all(start < stop for start, stop in found) else None


def inside(box: Box, outer: Box) -> Box:
    """The box, counted from the start of the outer box."""
    return tuple((a - start, b - start) for (a, b), (start, _) in zip(box, outer, strict=True))


def volume(box: Box) -> int:
    """How many numbers a box holds."""
    return math.prod(stop - start for start, stop in box)


def slices(box: Box) -> tuple[slice, ...]:
    """The box as an index into a tensor."""
    return tuple(slice(start, stop) for start, stop in box)
