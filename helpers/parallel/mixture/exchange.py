"""Rows to the ranks of their experts, and back: all-to-alls of uneven parts, with autograd.

First the ranks exchange how many rows each expert gets, then the rows. All orders are fixed: rows
for one expert are in the order of their ranks, and return in the order in which they were sent.

R  rows of this rank's tokens        r  rows for this rank's experts        D  width
E  experts of all ranks              e  experts of this rank                N  ranks
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.autograd.function import once_differentiable

from helpers.comm.regions import Coming, pair
from helpers.comm.transport import GroupTransport


@dataclass(frozen=True, kw_only=True, eq=False)
class Route:
    """Where this rank's rows go, and which rows come.

    Attributes:
        sent: rows to each rank, in the order of ranks.
        came: rows from each rank.
        order: (r,) int64: which of the rows that came is next, by expert, then by rank.
        counts: (e,) int64, rows of each expert of this rank.
    """

    sent: Sequence[int]
    came: Sequence[int]
    order: torch.Tensor
    counts: torch.Tensor


@torch.no_grad()
def route(counts: torch.Tensor, shares: Sequence[int], transport: GroupTransport) -> Route:
    """Exchange how many rows each expert gets. Every rank calls it.

    Args:
        counts: (E,) int64, this rank's rows for each expert.
        shares: how many experts each rank has; they are in the order of ranks.
    """
    own, ranks = shares[transport.rank], transport.size
    theirs = counts.new_empty(ranks, own)  # rows of each rank for each own expert
    transport.all_to_all(theirs, counts, ([own] * ranks, list(shares))).wait()
    sent = torch.stack([part.sum() for part in counts.split(list(shares))])
    sent, came = torch.stack([sent, theirs.sum(1)]).tolist()  # a GPU is read once
    experts = torch.arange(own, device=counts.device).repeat(ranks)
    order = experts.repeat_interleave(theirs.flatten(), output_size=sum(came)).argsort(stable=True)
    return Route(sent=sent, came=came, order=order, counts=theirs.sum(0))


def dispatch(
    rows: torch.Tensor, way: Route, transport: GroupTransport
) -> Callable[[], torch.Tensor]:
    """Start to send rows (R, D), sorted by expert, to their experts' ranks.

    What is computed before the rows are needed overlaps the message. In the backward, that
    computation's backward overlaps the message back.

    Returns:
        A function to call once: it waits, and returns (r, D), sorted by own expert.
    """
    running: list[Coming] = []
    received = _Begin.apply(rows, way, transport, running)
    return lambda: _End.apply(received, way, transport, running)


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, way, transport, running):
        ctx.running = running
        running.append(exchange(rows, way.sent, way.came, transport))
        return running[0].buffer

    @staticmethod
    @once_differentiable
    def backward(ctx, _):
        return ctx.running.pop().wait(), None, None, None


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx, received, way, transport, running):
        ctx.given = way, transport, running
        return running.pop().wait()[way.order]

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        way, transport, running = ctx.given
        gradient = unsorted(gradient, way)
        running.append(exchange(gradient, way.came, way.sent, transport))
        return gradient, None, None, None  # of the right shape; `_Begin` returns what comes


def collect(rows: torch.Tensor, way: Route, transport: GroupTransport) -> torch.Tensor:
    """Send rows (r, D) back to where `dispatch` took them from: (R, D), in the same order."""
    return pair(collect, rows, transport, partial(to_tokens, way), partial(to_experts, way))


def to_tokens(way: Route, rows: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    return exchange(unsorted(rows, way), way.came, way.sent, transport).wait()


def to_experts(way: Route, rows: torch.Tensor, transport: GroupTransport) -> torch.Tensor:
    return exchange(rows, way.sent, way.came, transport).wait()[way.order]


def unsorted(rows: torch.Tensor, way: Route) -> torch.Tensor:
    """Rows by own expert, in the order in which they came."""
    found = torch.empty_like(rows)
    found[way.order] = rows
    return found


def exchange(
    rows: torch.Tensor, sent: Sequence[int], came: Sequence[int], transport: GroupTransport
) -> Coming:
    """Start an all-to-all of so many rows to and from each rank; also if this rank has none."""
    width = rows.shape[-1]
    received = rows.new_empty(sum(came), width)
    sizes = [width * count for count in came], [width * count for count in sent]
    return Coming(transport.all_to_all(received, rows.detach().contiguous(), sizes), received)
