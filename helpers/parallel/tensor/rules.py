"""How each operation places its result: whole, cut along a dim, or a partial sum.

A rule sees a Call: the operation, and the placements of its inputs. It returns the placement of the
result, or raises a PlacementError that says what is wrong and what to do instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from helpers.comm import regions

WHOLE, PARTIAL = "whole", "partial"
Placement = str | int  # WHOLE, PARTIAL, or the dim that is cut, counted from 0


class PlacementError(ValueError):  # an operator like + would hide a TypeError
    """An operation that is wrong for the placement of its inputs."""


@dataclass(frozen=True)
class Call:
    """An operation about to run: the placements and shapes of its tensors, in order."""

    name: str
    placements: list[Placement]
    shapes: list[tuple[int, ...]]
    args: tuple
    kwargs: Mapping

    def argument(self, index: int, name: str, default=None):
        """An argument that may be given by its place or by its name."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[index] if len(self.args) > index else default


def said(placement: Placement) -> str:
    return f"cut({placement})" if isinstance(placement, int) else placement


def elementwise(call: Call) -> Placement:
    """One input, number by number, not linear: f(a + b) is not f(a) + f(b)."""
    (placement,) = call.placements[:1]
    if placement == PARTIAL:
        raise PlacementError(
            f"{call.name} of a partial sum: {call.name}(a + b) is not {call.name}(a) + "
            f"{call.name}(b). Sum over the ranks first (reduce_from), or cut the matrix before by "
            "columns instead of rows"
        )
    return together(call)


def together(call: Call) -> Placement:
    """Several inputs, number by number: the same cut in all, counted from the last dim."""
    ranks = max(len(shape) for shape in call.shapes)
    cuts = set()
    for placement, shape in zip(call.placements, call.shapes, strict=True):
        if placement == PARTIAL:
            raise PlacementError(f"{call.name} of a partial sum: sum over the ranks first")
        if isinstance(placement, int):
            cuts.add(placement + ranks - len(shape))
    if len(cuts) > 1:
        raise PlacementError(
            f"{call.name} of tensors that are cut along different dims, {sorted(cuts)}"
        )
    if not cuts:
        return WHOLE
    (dim,) = cuts
    for placement, shape in zip(call.placements, call.shapes, strict=True):
        own = dim - ranks + len(shape)
        if placement == WHOLE and own >= 0 and shape[own] != 1:
            raise PlacementError(
                f"{call.name} of a whole tensor and one that is cut along dim {dim}: the shapes "
                "fit by accident, and the numbers belong to other indices"
            )
    return dim


def added(call: Call) -> Placement:
    """A sum: partial + partial is partial; partial + whole counts the whole on every rank."""
    kinds = set(call.placements)
    if PARTIAL not in kinds:
        return together(call)
    other = [f"{said(kind)} tensor" for kind in kinds - {PARTIAL}]
    other += ["number" for a in call.args[:2] if isinstance(a, int | float) and a]
    if other:
        raise PlacementError(
            f"{call.name} of a partial sum and a {other[0]}: every rank would add it, and the sum "
            "over the ranks counts it once for each rank. Add it after the sum"
        )
    return PARTIAL


def multiplied(call: Call) -> Placement:
    """A product, number by number: a partial sum times a number is a partial sum."""
    if PARTIAL not in call.placements:
        return together(call)
    others = [p for p in call.placements if p != PARTIAL]
    if len(others) + 1 < len(call.placements) or any(p != WHOLE for p in others):
        raise PlacementError(f"{call.name} of partial sums is no sum: sum over the ranks first")
    return PARTIAL


def divided(call: Call) -> Placement:
    """A quotient: a partial sum divided by a number is a partial sum, but not the reverse."""
    if PARTIAL in call.placements[1:]:
        raise PlacementError(f"{call.name} by a partial sum: sum over the ranks first")
    return multiplied(call)


def product(call: Call) -> Placement:
    """A matrix product (…, n, k) (…, k, m), batched or not."""
    (a, b), (left, right) = call.placements[:2], call.shapes[:2]
    if call.name == "linear":
        b = b if not isinstance(b, int) else 1 - b  # the weight is (m, k)
        right = right[::-1]
    bias = call.placements[2] if call.name == "linear" and len(call.placements) > 2 else None
    found = of_product(call.name, a, b, left, right)
    if bias is not None and found == PARTIAL:
        raise PlacementError(
            "linear adds its bias to a partial sum: the sum over the ranks counts the bias once "
            "for each rank. Add the bias after the sum"
        )
    return found


def of_product(name: str, a: Placement, b: Placement, left, right) -> Placement:
    if PARTIAL in (a, b):
        if {a, b} == {PARTIAL, WHOLE}:
            return PARTIAL
        raise PlacementError(f"{name} of a partial sum and a tensor that is cut: sum first")
    inner_a, inner_b, columns = len(left) - 1, len(right) - 2, len(right) - 1
    result = max(len(left), len(right))
    if a == inner_a and b == inner_b:
        return PARTIAL
    if a == inner_a or b == inner_b:
        cut, whole = ("first", "second") if a == inner_a else ("second", "first")
        raise PlacementError(
            f"{name}: the {cut} factor is cut along the dim that is summed, and the {whole} is not"
        )
    if isinstance(a, int) and isinstance(b, int):
        if a - len(left) == b - len(right):
            return a + result - len(left)  # the same batch dim: heads
        raise PlacementError(
            f"{name}: both factors are cut, along dims that do not belong together"
        )
    if isinstance(a, int):
        return a + result - len(left)
    if b == columns:
        return result - 1
    return WHOLE if b == WHOLE else b + result - len(right)


def along(call: Call) -> Placement:
    """Softmax, a norm, a mean: over some dims. All of a dim must be here."""
    (placement,) = call.placements[:1]
    if placement == PARTIAL:
        raise PlacementError(f"{call.name} of a partial sum: sum over the ranks first")
    if isinstance(placement, int) and placement in dims_of(call):
        raise PlacementError(
            f"{call.name} over dim {placement}, which is cut: it sees this rank's part alone"
        )
    return placement


def averaged(call: Call) -> Placement:
    """A mean: the dims behind those that vanish move forward."""
    placement = along(call)
    if placement == WHOLE or call.argument(2, "keepdim", False):
        return placement
    return placement - sum(dim < placement for dim in dims_of(call))


def dims_of(call: Call) -> set[int]:
    """The dims that a softmax, a norm or a mean goes over."""
    rank = len(call.shapes[0])
    if call.name in ("layer_norm", "rms_norm"):
        shape = call.argument(1, "normalized_shape")
        return set(range(rank - len(shape), rank))
    dim = call.argument(1, "dim")
    if dim is None:
        return set(range(rank))
    return {d % rank for d in (dim if isinstance(dim, tuple | list) else (dim,))}


def attention(call: Call) -> Placement:
    """Queries, keys and values (B, H, T, d), all whole, or all cut by heads."""
    kinds = set(call.placements[:3])
    if len(kinds) > 1 or kinds - {WHOLE, 1}:
        raise PlacementError(
            f"attention of {', '.join(map(said, call.placements[:3]))}: cut queries, keys and "
            "values by heads (dim 1), or none of them"
        )
    return kinds.pop()


def lookup(call: Call) -> Placement:
    """embedding(tokens, table): rows that are elsewhere must be zeros, and give partial sums."""
    tokens, rows = call.placements[:2]
    if tokens != WHOLE and rows != WHOLE:
        raise PlacementError("embedding: tokens and table are both cut; one must be whole")
    if rows == 0:
        return PARTIAL
    return tokens if rows == WHOLE else len(call.shapes[0])


def filled(call: Call) -> Placement:
    """masked_fill(mask, value): zeros in all ranks' tensors are zeros in their sum."""
    if call.placements[0] == PARTIAL and call.argument(2, "value") != 0:
        raise PlacementError(
            f"{call.name} of a partial sum: each rank's value is added. Sum over the ranks first"
        )
    return call.placements[0]


def joined(call: Call) -> Placement:
    """cat(tensors, dim): side by side on each rank is not side by side in the whole."""
    placement, dim = together(call), call.argument(1, "dim", 0) % len(call.shapes[0])
    if placement == dim:
        raise PlacementError(
            f"{call.name} along dim {dim}, which is cut: the ranks' results, side by side, have "
            "the parts in another order than the whole tensor"
        )
    return placement


# operations that move dims, or cut them up


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


# messages


def summed_over_ranks(call: Call) -> Placement:
    if call.placements[0] == PARTIAL:
        return WHOLE
    raise PlacementError(
        f"{call.name} of a {said(call.placements[0])} tensor: it is no partial sum, so the sum "
        "over the ranks counts it once for each rank. Was it summed before?"
    )


def scattered(call: Call) -> Placement:
    summed_over_ranks(call)
    return regions.TOKENS


def gathered(call: Call) -> Placement:
    if call.placements[0] == regions.TOKENS:
        return WHOLE
    raise PlacementError(
        f"gather_from of a {said(call.placements[0])} tensor: it gathers tensors that are cut "
        f"along dim {regions.TOKENS}, the tokens"
    )


def entered(call: Call) -> Placement:
    if call.placements[0] == WHOLE:
        return WHOLE
    raise PlacementError(
        f"copy_to of a {said(call.placements[0])} tensor: what enters a layer must be whole"
    )


def unknown(call: Call) -> Placement:
    """Without a rule: fine as long as everything is whole."""
    if set(call.placements) == {WHOLE}:
        return WHOLE
    raise PlacementError(
        f"{call.name} of {', '.join(map(said, call.placements))}: the checker has no rule for it"
    )


RULES: dict = {
    **dict.fromkeys(("gelu", "silu", "relu", "tanh", "sigmoid", "exp", "log", "pow"), elementwise),
    **dict.fromkeys(("add", "sub", "iadd", "radd", "rsub"), added),
    **dict.fromkeys(("mul", "rmul", "neg"), multiplied),
    **dict.fromkeys(("truediv", "div"), divided),
    **dict.fromkeys(("matmul", "linear"), product),
    **dict.fromkeys(("softmax", "log_softmax", "layer_norm", "rms_norm"), along),
    "mean": averaged,
    **dict.fromkeys(("to", "float", "double", "clone", "detach", "contiguous"), same),
    **dict.fromkeys(("view_as", "repeat_interleave"), same),
    "masked_fill": filled,
    "chunk": split,
    "scaled_dot_product_attention": attention,
    "embedding": lookup,
    "transpose": swapped,
    "unflatten": unflattened,
    "flatten": flattened,
    "cat": joined,
    regions.copy_to: entered,
    regions.reduce_from: summed_over_ranks,
    regions.gather_from: gathered,
    regions.reduce_scatter_to: scattered,
}
