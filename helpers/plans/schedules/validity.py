"""Can a schedule run? Each computation once, on its stage's rank, in an order that never stops."""

from collections import Counter

from helpers.plans.schedules.action import (
    BACKWARD,
    FORWARD,
    INPUT,
    KINDS,
    WEIGHT,
    Action,
    Schedule,
    ScheduleError,
    inputs,
)


def check(schedule: Schedule) -> Schedule:
    """Return the schedule if it can run with buffered sends; else name the first thing wrong.

    A rank's computation waits for its inputs alone. Sends never wait: they are buffered, and the
    receives are posted. `stuck` answers for sends that wait.

    Raises:
        ScheduleError: an Action is not of this schedule, is missing, is there twice, or is on
            another rank; or every rank that still has work waits (a deadlock).
    """
    each_where_it_belongs(schedule)
    each_once(schedule)
    run(schedule)
    return schedule


def each_where_it_belongs(schedule: Schedule):
    for rank, order in enumerate(schedule.orders):
        for place, action in enumerate(order):
            where = f"rank {rank}, place {place}"
            if action.kind not in KINDS:
                raise ScheduleError(f"{where}: no kind {action.kind!r}; there are F, B, I and W")
            if not 0 <= action.stage < schedule.stages:
                raise ScheduleError(
                    f"{where}: {action}, but the stages are 0 to {schedule.stages - 1}"
                )
            if not 0 <= action.micro < schedule.micro_batches:
                raise ScheduleError(
                    f"{where}: {action}, but the micro-batches are 0 to "
                    f"{schedule.micro_batches - 1}"
                )
            if schedule.placement[action.stage] != rank:
                raise ScheduleError(
                    f"{where}: {action}, but stage {action.stage} is on rank "
                    f"{schedule.placement[action.stage]}"
                )


def each_once(schedule: Schedule):
    """A forward and a backward for each stage and micro-batch: B, or else I and W."""
    counts = Counter(action for order in schedule.orders for action in order)
    for rank in range(schedule.ranks):
        for stage in schedule.stages_of(rank):
            for micro in range(schedule.micro_batches):
                own = {kind: Action(kind, stage, micro) for kind in KINDS}
                for action in own.values():
                    if counts[action] > 1:
                        raise ScheduleError(f"rank {rank} computes {action} more than once")
                parts = any(counts[own[kind]] for kind in (INPUT, WEIGHT))
                if parts and counts[own[BACKWARD]]:
                    raise ScheduleError(
                        f"rank {rank} has a whole backward B{micro} of stage {stage} and also a "
                        "part of it, I or W: use B, or use I and W"
                    )
                for kind in (FORWARD, INPUT, WEIGHT) if parts else (FORWARD, BACKWARD):
                    if not counts[own[kind]]:
                        raise ScheduleError(f"rank {rank} never computes {own[kind]}")


def run(schedule: Schedule) -> list[tuple[int, Action]]:
    """One order of all computations in which each follows its inputs: (rank, Action) each.

    Raises:
        ScheduleError: a deadlock. The message names what each rank waits for.
    """
    place, done, found = [0] * schedule.ranks, set(), []
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(schedule.orders):
            while place[rank] < len(order):
                action = order[place[rank]]
                if waits_for(action, done, schedule.stages):
                    break
                done.add(action)
                found.append((rank, action))
                place[rank] += 1
                moved = True
    if len(found) < sum(map(len, schedule.orders)):
        raise ScheduleError(deadlock(schedule, place, done))
    return found


def waits_for(action: Action, done, stages: int) -> Action | None:
    """The first input that is not computed yet, or None."""
    return next(
        (any_of[0] for any_of in inputs(action, stages) if done.isdisjoint(any_of)),
        None,
    )


def deadlock(schedule: Schedule, place, done) -> str:
    """What every rank that still has work waits for. A rank that waits for itself is first."""
    own, others = [], []
    for rank, order in enumerate(schedule.orders):
        if place[rank] == len(order):
            continue
        action = order[place[rank]]
        need = waits_for(action, done, schedule.stages)
        if schedule.placement[need.stage] == rank:
            own.append(f"rank {rank} computes {action} before {need}, which it needs")
        else:
            others.append(f"rank {rank} waits before {action} for {need}")
    if own:
        return own[0]
    return f"deadlock: {'; '.join(others)}"
