"""Placement rules of operations that move dims or cut them up: transpose, flatten, chunk."""

from helpers.parallel.tensor.call import Call, Placement, PlacementError


def same(call: Call) -> Placement:
    """A copy, a view or a cast that moves no dim."""
    return call.placements[0]


def split(call: Call) -> Placement:
    """chunk(n, dim): a rank's chunks of a cut dim are no parts of the whole tensor's chunks."""
    placement, dim = call.placements[0], call.argument(2, "dim", 0) % len(call.shapes[0])
    if placement == dim:
        raise PlacementError(
            f"{call.name} along dim {dim}, which is cut: a chunk of this rank's part is no part of "
            "the whole tensor's chunk. Make the chunks first, and cut each of them"
        )
    return placement


def swapped(call: Call) -> Placement:
    """transpose(a, b)."""
    placement, rank = call.placements[0], len(call.shapes[0])
    one, other = call.argument(1, "dim0") % rank, call.argument(2, "dim1") % rank
    return {one: other, other: one}.get(placement, placement)


def unflattened(call: Call) -> Placement:
    """unflatten(dim, sizes): a cut dim is cut along its first piece."""
    placement, rank = call.placements[0], len(call.shapes[0])
    dim, sizes = call.argument(1, "dim") % rank, call.argument(2, "sizes")
    if isinstance(placement, int) and placement > dim:
        return placement + len(sizes) - 1
    return placement


def flattened(call: Call) -> Placement:
    """flatten(start, end): the cut dim must be the first of those that become one."""
    placement, rank = call.placements[0], len(call.shapes[0])
    start = call.argument(1, "start_dim", 0) % rank
    end = call.argument(2, "end_dim", -1) % rank
    if not isinstance(placement, int) or placement <= start:
        return placement
    if placement <= end:
        raise PlacementError(
            f"flatten: dim {placement} is cut, and is not the first of the dims {start} to {end}: "
            "the ranks' tensors, side by side, would not be the whole one"
        )
    return placement - (end - start)
