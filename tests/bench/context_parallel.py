"""Time a training step with attention cut over two ranks, and each order's share of waiting."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.autograd.function import once_differentiable

from helpers.comm.messages import Peers
from helpers.models.attention import last_of
from helpers.models.blockwise import SIZE, attend, blocks, gradients, merge, nothing, read
from helpers.parallel.cut_sequence.collective import gathered_attention, ulysses
from helpers.parallel.cut_sequence.model import context_parallel
from helpers.parallel.cut_sequence.ring import ring_attention
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.trainer import Recipe
from helpers.plans.sequence_order import contiguous, ring_efficiency, spans, striped, zigzag
from tests.bench.compare import duration, one_thread
from tests.bench.report import Report, goal_of, markdown, mib, share_of
from tests.bench.steps import NOTES, RANKS, measured, row

NAME = "context_parallel"
WORK = {"preset": "1M", "axis": "cp", "tokens": 2048}
ROUNDS = 10
PEER = "whole blocks"
GOAL = 0.8
TOKENS = 1024  # of a rank, for the orders
DOCUMENTS = (3000, 200, 1800, 700, 96, 1400, 996)  # 8 ranks' tokens
PUBLISHED = "51.4 to 53.9 %"  # see tests/plans/test_sequence_order.py


def whole_blocks(q, k, v, parts, peers: Peers, size: int = 0, documents=()) -> torch.Tensor:
    """Compute as `ring_attention` of contiguous parts, in the pattern of picotron's ring.

    Every head of queries has a key of its own, keys and values are two messages, a step's scores
    are one matrix, and the gradients of keys and values travel N times.
    """
    shared = q.shape[1] // k.shape[1]
    return _WholeBlocks.apply(q, *(x.repeat_interleave(shared, 1) for x in (k, v)), peers)


class _WholeBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, peers):
        found = None
        for step, here in around((k, v), peers):
            if step <= peers.rank:
                mask = None if step else last_of(q.shape[2], q.shape[2], q.device)
                one = attend(q, *here, mask)
                found = one if found is None else merge(*found, *one)
        y, total = found
        ctx.peers = peers
        ctx.save_for_backward(q, k, v, y, total)
        return y.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, y, total = ctx.saved_tensors
        peers, of_q, works = ctx.peers, torch.zeros_like(q), []
        inner, of_keys = (grad * y).sum(-1), [torch.zeros_like(k), torch.zeros_like(v)]
        for step, here in around((k, v), peers):
            own = None
            if step <= peers.rank:
                mask = None if step else last_of(q.shape[2], q.shape[2], q.device)
                own_q, *own = gradients(grad, q, *here, total, inner, mask)
                of_q += own_q
            for work in works:
                work.wait()
            if own is not None:
                of_keys = [a + b for a, b in zip(of_keys, own, strict=True)]
            of_keys, works = started(of_keys, peers)
        for work in works:
            work.wait()
        return of_q, *of_keys, None


def around(here: Sequence[torch.Tensor], peers: Peers):
    """Yield (step, keys and values): the own ones, then those of the ranks to the left."""
    for step in range(peers.size):
        came, works = started(here, peers) if step < peers.size - 1 else (None, [])
        yield step, here
        for work in works:
            work.wait()
        here = came


def started(tensors: Sequence[torch.Tensor], peers: Peers) -> tuple[list, list]:
    """Start to send each tensor to the right; those that come from the left, and the works."""
    tensors = [tensor.contiguous() for tensor in tensors]
    came = [torch.empty_like(tensor) for tensor in tensors]
    pairs = zip(tensors, came, strict=True)
    return came, [work for a, b in pairs for work in peers.begin(a, peers.right, b, peers.left)]


def cut(attention: Callable, order: Callable) -> Recipe:
    return Recipe(transform=partial(context_parallel, attention=attention, order=order),
                  owner=Replicated)  # fmt: skip


CONTENDERS = {
    PEER: cut(whole_blocks, contiguous),
    "ring, contiguous": cut(ring_attention, contiguous),
    "ring, zigzag": cut(ring_attention, zigzag),
    "Ulysses": cut(ulysses, contiguous),
    "gathered": cut(gathered_attention, zigzag),
}


def regardless(documents, ranks: int):
    """Zigzag of the whole sequence, wherever its documents end."""
    return zigzag(sum(documents), ranks)


ORDERS = [
    *((ranks, order, (TOKENS * ranks,))
      for ranks in (2, 8) for order in (contiguous, zigzag, striped)),
    *((8, order, DOCUMENTS) for order in (contiguous, regardless, zigzag)),
]  # fmt: skip


def measure(quick: bool = False) -> Report:
    times, costs = measured(CONTENDERS, 1 if quick else ROUNDS, **WORK)
    rows = [row(n, PEER, GOAL if n == "ring, zigzag" else None, times, costs[n]) for n in times]
    with one_thread():
        found = [order_row(*one, repeats=1 if quick else 5) for one in ORDERS]
    return report(rows, found)


def order_row(ranks: int, order: Callable, documents, repeats: int) -> dict:
    """The efficiency of a ring by its blocks' times: each alone here, then put together."""
    parts = order(documents, ranks)
    places = [spans(part, documents) for part in parts]
    steps = [[0.0] * ranks for _ in parts]
    for rank, queries in enumerate(places):
        for step in range(ranks):
            keys = places[rank - step]
            steps[rank][step] = min(reading(queries, keys) for _ in range(repeats))
    slowest = sum(map(max, zip(*steps, strict=True)))
    efficiency = sum(map(sum, steps)) / ranks / slowest
    return {
        "contender": order.__name__,
        "ranks": ranks,
        "documents": len(documents),
        "efficiency": efficiency,
        "formula": ring_efficiency(parts, documents),
    }


def reading(queries, keys, heads: int = 2, width: int = 64) -> float:
    """Seconds of the forward of these queries with these keys."""
    q, k = (torch.ones(1, heads, sum(len(p) for _, p in one), width) for one in (queries, keys))
    y, total = nothing(q, k)
    began = time.perf_counter()
    read(y, total, q, k, k, blocks(q, k, None, SIZE, (queries, keys)))
    return time.perf_counter() - began


def report(rows, orders) -> Report:
    table = [["", "median", f"over {PEER}", "goal", "peak memory", "sent, formula"]]
    for r in rows:
        share = "" if r["contender"] == PEER else share_of(r)
        sizes = [mib(r[key]) for key in ("peak", "wire")]
        table.append([r["contender"], duration(r["median"]), share, goal_of(r), *sizes])
    waits = [["order of a ring", "ranks", "documents", "efficiency", "formula", "published"]]
    for r in orders:
        known = PUBLISHED if (r["contender"], r["ranks"]) == ("contiguous", 8) else ""
        shares = [f"{r[key]:.1%}" for key in ("efficiency", "formula")]
        counts = [str(r["ranks"]), str(r["documents"])]
        waits.append([r["contender"], *counts, *shares, known if r["documents"] == 1 else ""])
    notes = (
        f"GPT of {WORK['preset']} parameters, float32, {RANKS} ranks, one thread each, one "
        f"sequence of {WORK['tokens']} tokens, fused AdamW. {NOTES}*{PEER}* is a ring in the "
        "pattern of picotron's (github.com/huggingface/picotron at 59714b1), written anew, because "
        "there is no package of it: contiguous parts, and each step's scores as one matrix. Peak "
        "memory is that of all tensors, on the rank with the most.\n\nEfficiency is a rank's mean "
        "time over the slowest rank's in each step. Each rank's blocks of a forward ran alone, the "
        f"fastest of 5 runs, {TOKENS} tokens a rank; the formula counts scores. *regardless* is "
        "zigzag of the whole sequence, wherever its documents end.\n\n"
        f"{markdown(waits)}"
    )
    keys = dict.fromkeys([*rows[0], *orders[0]], "")
    return Report(NAME, table, notes, [keys | r for r in [*rows, *orders]])
