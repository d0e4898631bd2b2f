"""How many micro-batches' activations each rank keeps."""

from helpers.plans.schedules.action import BACKWARD, FORWARD, WEIGHT, Schedule


def held(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """For each rank and each of its Actions: the activations that it keeps while the Action runs.

    The unit is the activations of one micro-batch in one stage. A forward makes them; the whole
    backward, or the gradient of the weights, frees them at its end. (I frees a part of them
    earlier. The zero-bubble paper counts this part separately.)
    """
    counts = []
    for order in schedule.orders:
        kept, own = 0, []
        for action in order:
            kept += action.kind == FORWARD
            own.append(kept)
            kept -= action.kind in (BACKWARD, WEIGHT)
        counts.append(tuple(own))
    return tuple(counts)


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """For each rank, the most activations that it keeps at once: micro-batches times stages.

    GPipe: m on each rank. 1F1B: min(p - r, m) on rank r. With v stages a rank, each of them is 1/v
    as large: `in_flight_share` compares equal models.
    """
    return tuple(max(own, default=0) for own in held(schedule))


def in_flight_share(schedule: Schedule) -> tuple[float, ...]:
    """The same in micro-batches of a whole rank: interleaved 1F1B keeps p (1 + (p - 1)/(p v)).

    Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3.
    """
    return tuple(
        peak / len(schedule.stages_of(rank)) for rank, peak in enumerate(in_flight(schedule))
    )
