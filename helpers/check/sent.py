"""Bytes that ranks really send in collectives, as the operating system counts them."""

from functools import cache

import torch
import torch.distributed as dist

from helpers.check import elsewhere
from helpers.comm.collectives import ring_reduce_scatter
from helpers.comm.ledger import ledger


@cache
def bytes_of_ranks(ranks: int, nbytes: int, *plans: tuple[str, ...]) -> list[list[int] | None]:
    """Return for each plan what each rank sent; None where the system does not count.

    Args:
        nbytes: of the whole buffer.
        plans: names of collectives, which run one after another.
    """
    runs = elsewhere.here(count, ranks, None, {"nbytes": nbytes, "plans": plans})
    return [None if None in row else list(row) for row in zip(*runs, strict=True)]


def count(worker, solve, nbytes, plans) -> list[int | None]:
    whole, part = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4 // worker.world_size)
    found = []
    for plan in plans:
        dist.barrier()
        with ledger() as log:
            for collective in plan:
                do(collective, whole, part)
            dist.barrier()  # all that was sent has been received: it can be counted
        found.append(log.kernel)
    return found


def do(collective: str, whole: torch.Tensor, part: torch.Tensor):
    """The collective, by an algorithm that sends no more than it must."""
    parts = list(whole.chunk(dist.get_world_size()))
    match collective:
        case "all_reduce":
            dist.all_reduce(whole)
        case "all_gather":
            dist.all_gather(parts, part)
        case "reduce_scatter":
            ring_reduce_scatter(part, whole)
        case "all_to_all":
            dist.all_to_all([torch.empty_like(one) for one in parts], parts)
        case "broadcast":
            dist.broadcast(whole, 0)
