"""Interleaved 1F1B: v smaller stages on each rank, so that the bubble is v times smaller.

Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", arXiv:2104.04473, section 2.2.2.
"""

from helpers.plans.schedules.action import (
    BACKWARD,
    FORWARD,
    Action,
    Schedule,
    ScheduleError,
    enough,
    straight,
)
from helpers.plans.schedules.plain import one_f_one_b


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """1F1B over v stages a rank: rank r has stages r, p + r, 2 p + r, …

    A rank takes p micro-batches through its first stage, then the same p through its second, and so
    on. The price of the smaller bubble: v times the messages, and more micro-batches in flight.

    Args:
        chunks: v. With 1, this is 1F1B.

    Raises:
        ScheduleError: m is no multiple of p.
    """
    enough(ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    if micro_batches % ranks:
        raise ScheduleError(
            f"{micro_batches} micro-batches on {ranks} ranks: interleaving goes through the "
            f"micro-batches in groups of {ranks}, so their number must be a multiple of {ranks}"
        )
    if chunks == 1:
        return one_f_one_b(ranks, micro_batches)
    orders = tuple(_order(rank, ranks, micro_batches, chunks) for rank in range(ranks))
    return Schedule("interleaved 1F1B", straight(ranks, chunks), micro_batches, orders)


def _order(rank: int, ranks: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    every = range(0, micro_batches, ranks)
    forwards = [
        Action(FORWARD, chunk * ranks + rank, first + micro)
        for first in every
        for chunk in range(chunks)
        for micro in range(ranks)
    ]
    backwards = [
        Action(BACKWARD, chunk * ranks + rank, first + micro)
        for first in every
        for chunk in reversed(range(chunks))
        for micro in range(ranks)
    ]
    # One group through all stages but the last, and two more for each rank below: a forward goes
    # down through these ranks while a backward comes up.
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(forwards))
    order = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        order += [forward, backward]
    return (*order, *backwards[len(forwards) - warm :])
