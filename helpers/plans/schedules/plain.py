"""Schedules with one stage a rank: naive, GPipe, and 1F1B with a flush."""

from helpers.plans.schedules.action import (
    BACKWARD,
    FORWARD,
    Action,
    Schedule,
    enough,
    straight,
)


def naive(ranks: int, micro_batches: int = 1) -> Schedule:
    """One micro-batch at a time goes through all stages and back; one rank computes at a time."""
    enough(ranks=ranks, micro_batches=micro_batches)
    kinds = (FORWARD, BACKWARD)
    orders = tuple(
        tuple(Action(kind, rank, micro) for micro in range(micro_batches) for kind in kinds)
        for rank in range(ranks)
    )
    return Schedule("naive", straight(ranks), micro_batches, orders)


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards: every micro-batch's activations are kept.

    Huang et al. 2019, "GPipe", arXiv:1811.06965, sections 2.2 (the algorithm) and 2.3 (the bubble).
    """
    enough(ranks=ranks, micro_batches=micro_batches)
    orders = tuple(
        tuple(
            Action(kind, rank, micro)
            for kind in (FORWARD, BACKWARD)
            for micro in range(micro_batches)
        )
        for rank in range(ranks)
    )
    return Schedule("GPipe", straight(ranks), micro_batches, orders)


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """1F1B with a flush: a warm-up, then one forward and one backward in turn, then the rest.

    Rank r keeps at most min(p - r, m) micro-batches; GPipe keeps m, with the same bubble.

    Narayanan et al. 2020, arXiv:2006.09503, section 3.2 (PipeDream-flush).
    """
    enough(ranks=ranks, micro_batches=micro_batches)
    orders = []
    for rank in range(ranks):
        warm = min(ranks - 1 - rank, micro_batches)
        order = [Action(FORWARD, rank, micro) for micro in range(warm)]
        for micro in range(micro_batches - warm):
            order += [Action(FORWARD, rank, warm + micro), Action(BACKWARD, rank, micro)]
        order += [Action(BACKWARD, rank, m) for m in range(micro_batches - warm, micro_batches)]
        orders.append(tuple(order))
    return Schedule("1F1B", straight(ranks), micro_batches, tuple(orders))
