"""The order by experts: rows of an expert are neighbours, so that each has one matrix product.

N  tokens        k  experts of a token        R  rows: choices that are kept, N k without drops
D  width of a token's vector                  E  experts
"""

from dataclasses import dataclass

import torch
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """Which choice each row is.

    Attributes:
        slots: (R,) int64: n k + j is choice j of token n. Sorted by expert, then by token.
        counts: (E,) int64: the rows of each expert.
        tokens, k: N and k.
    """

    slots: torch.Tensor
    counts: torch.Tensor
    tokens: int
    k: int


@torch.no_grad()
def sort(chosen: torch.Tensor, experts: int, kept: torch.Tensor | None = None) -> Order:
    """Sort choices by expert; choices of one expert keep the order of their tokens.

    Args:
        chosen: (N, k) int64.
        experts: E.
        kept: (N, k) bool; a choice that is not kept has no row. None: all are kept.
    """
    flat = chosen.flatten()
    if kept is not None:
        flat = flat.masked_fill(~kept.flatten(), experts)  # behind the last expert
    counts = torch.bincount(flat, minlength=experts)[:experts]
    slots = flat.argsort(stable=True)
    if kept is not None:
        slots = slots[: int(counts.sum())]
    return Order(slots=slots, counts=counts, tokens=len(chosen), k=chosen.shape[1])


def spread(x: torch.Tensor, order: Order) -> torch.Tensor:
    """Copy each token to its rows: (N, D) to (R, D). The backward adds in the order of choices."""
    return _Spread.apply(x, order)


def combine(rows: torch.Tensor, gates: torch.Tensor, order: Order) -> torch.Tensor:
    """Add up each token's rows, times their gates: (R, D) and (N, k) to (N, D), in rows' dtype.

    The sum is in the order of the choices, in the wider dtype of rows and gates. A choice without a
    row adds nothing, and its gate gets no gradient.
    """
    weighted = rows * gates.flatten()[order.slots, None]
    return gather_rows(weighted, order).to(rows.dtype)


def gather_rows(rows: torch.Tensor, order: Order) -> torch.Tensor:
    """Add up the rows of each token: (R, D) to (N, D)."""
    every = rows.new_zeros(order.tokens * order.k, rows.shape[-1])
    every = every.index_copy(0, order.slots, rows)
    return every.unflatten(0, (order.tokens, order.k)).sum(1)


class _Spread(torch.autograd.Function):
    """An index's own backward adds in no certain order on a GPU."""

    @staticmethod
    def forward(ctx, x, order):
        ctx.order = order
        return x[order.slots // order.k]

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gather_rows(gradient, ctx.order), None
