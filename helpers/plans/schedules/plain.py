"""Naive, GPipe, 1F1B with a flush, and interleaved 1F1B: v smaller stages on each rank."""

from helpers.plans.schedules.action import (
    BACKWARD,
    FORWARD,
    Action,
    Schedule,
    ScheduleError,
    enough,
    straight,
)


def naive(ranks: int, micro_batches: int = 1) -> Schedule:
    """One micro-batch at a time goes through all stages and back; one rank computes at a time."""
    order = [(kind, m) for m in range(micro_batches) for kind in (FORWARD, BACKWARD)]
    return on_every_rank("naive", ranks, micro_batches, order)


def one_at_a_time(schedule: Schedule) -> Schedule:
    """The same computations on the same ranks, in the naive order."""
    orders = []
    for order in schedule.orders:
        forwards = [action for action in order if action.kind == FORWARD]
        backwards = [action for action in order if action.kind != FORWARD]
        forwards.sort(key=lambda action: (action.micro, action.stage))
        backwards.sort(key=lambda action: (action.micro, -action.stage))  # I stays before W
        both = sorted([*forwards, *backwards], key=lambda action: action.micro)
        orders.append(tuple(both))
    name = f"{schedule.name}, one micro-batch at a time"
    return Schedule(name, schedule.placement, schedule.micro_batches, tuple(orders))


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards: every micro-batch's activations are kept.

    Huang et al. 2019, "GPipe", arXiv:1811.06965, sections 2.2 (the algorithm) and 2.3 (the bubble).
    """
    order = [(kind, m) for kind in (FORWARD, BACKWARD) for m in range(micro_batches)]
    return on_every_rank("GPipe", ranks, micro_batches, order)


def on_every_rank(name: str, ranks: int, micro_batches: int, order) -> Schedule:
    """The same order of (kind, micro-batch) on each rank."""
    enough(ranks=ranks, micro_batches=micro_batches)
    orders = tuple(tuple(Action(kind, rank, m) for kind, m in order) for rank in range(ranks))
    return Schedule(name, straight(ranks), micro_batches, orders)


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


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """1F1B over v stages a rank: rank r has stages r, p + r, 2 p + r, …

    A rank takes p micro-batches through its first stage, then the same p through its second, and so
    on. The bubble is v times smaller. The price: v times the messages, and more micro-batches in
    flight.

    Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", arXiv:2104.04473, section 2.2.2.

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
