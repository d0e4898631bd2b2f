"""The shortest schedule within a memory cap, proved by an integer program.

Variables: x[a, t] = 1 if computation a starts at time t. Each starts once; a rank computes one
thing at a time; a computation starts after its inputs; a rank keeps no more activations than its
cap. HiGHS, through `scipy.optimize.milp`, minimises the end and proves the bound: for a few ranks
and micro-batches only, as the program has (computations x time) variables.

Qi et al. 2023, arXiv:2401.10241, section 3, search schedules under a memory limit, too: by a
heuristic, and by an integer program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from helpers.plans.schedules.action import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Schedule,
    ScheduleError,
    enough,
    inputs,
    straight,
)
from helpers.plans.schedules.times import Costs, bubble, in_flight, timeline
from helpers.plans.schedules.validity import check

WHOLE = Costs(backward=2.0)
MOST = 20_000  # variables; more take minutes


@dataclass(frozen=True)
class Optimum:
    """The best schedule that was found, and what is proved about it.

    Attributes:
        schedule: it runs and keeps within the cap.
        makespan: of the schedule, in the unit of the costs.
        bound: no schedule within the cap is shorter than this.
    """

    schedule: Schedule
    makespan: float
    bound: float

    @property
    def proved(self) -> bool:
        """Whether no schedule within the cap is shorter."""
        return self.makespan <= self.bound


def optimum(
    ranks: int,
    micro_batches: int,
    cap: int | Sequence[int],
    costs: Costs = WHOLE,
    *,
    split: bool = False,
    placement: Sequence[int] | None = None,
    known: Schedule | None = None,
    seconds: float = 30.0,
) -> Optimum:
    """Find the shortest schedule in which no rank keeps more activations than its cap.

    Args:
        cap: the activations (micro-batches times stages) of each rank, or of every rank.
        costs: whole numbers of a time unit, 1 or more; a message may take 0.
        split: compute each backward in two parts, I and W.
        placement: the rank of each stage; by default stage r on rank r.
        known: a schedule of the same stages; the search begins below its time, if it keeps within
            the cap. The result is never longer.
        seconds: stop searching after this time; then `bound` may be below `makespan`.

    Raises:
        ScheduleError: a cap is below the number of the rank's stages, so that nothing can run;
            there is not one cap for each rank; a duration is no such number; or the problem is too
            large.
    """
    enough(ranks=ranks, micro_batches=micro_batches)
    stages = straight(ranks) if placement is None else tuple(placement)
    caps = [cap] * ranks if isinstance(cap, int) else list(cap)
    start = _in_turn(ranks, micro_batches, stages, split)
    _can_be_kept(caps, start)
    lengths = {action: _whole(costs.of(action), 1) for order in start.orders for action in order}
    candidates = [start]
    if stages == straight(ranks):
        candidates.append(_capped(ranks, micro_batches, caps, split))
    if known is not None and _within(known, caps):
        candidates.append(check(known))

    def makespan(schedule):
        return bubble(timeline(schedule, costs)).makespan

    best = min(candidates, key=makespan)
    horizon = _whole(makespan(best))
    if len(lengths) * horizon > MOST:
        raise ScheduleError(
            f"{len(lengths)} computations over {horizon} units of time are more than {MOST} "
            "variables: take fewer micro-batches or shorter, rounder durations"
        )
    times, bound = _solve(start, caps, lengths, _whole(costs.message), horizon, seconds)
    if times:
        orders = tuple(tuple(sorted(order, key=times.__getitem__)) for order in start.orders)
        found = check(Schedule("optimum", stages, micro_batches, orders))
        best = min(found, best, key=makespan)
    return Optimum(replace(best, name="optimum"), makespan(best), bound)


def _within(schedule: Schedule, caps: Sequence[int]) -> bool:
    return all(kept <= most for kept, most in zip(in_flight(schedule), caps, strict=True))


def _in_turn(ranks: int, micro_batches: int, stages: tuple[int, ...], split: bool) -> Schedule:
    """A schedule that always runs: one micro-batch after another. It bounds the time from above."""
    orders = [[] for _ in range(ranks)]
    for micro in range(micro_batches):
        for stage, rank in enumerate(stages):
            orders[rank].append(Action(FORWARD, stage, micro))
        for stage, rank in reversed(list(enumerate(stages))):
            kinds = (INPUT, WEIGHT) if split else (BACKWARD,)
            orders[rank] += [Action(kind, stage, micro) for kind in kinds]
    return check(Schedule("in turn", stages, micro_batches, tuple(map(tuple, orders))))


def _capped(ranks: int, micro_batches: int, caps: Sequence[int], split: bool) -> Schedule:
    """1F1B with a warm-up as short as the caps ask for: it shortens the search's axis of time."""
    orders, warm = [], micro_batches
    for rank, most in enumerate(caps):
        warm = min(warm, ranks - 1 - rank, most - 1)  # more than on the rank before: a deadlock
        order = [Action(FORWARD, rank, micro) for micro in range(warm)]
        for micro in range(micro_batches):
            if warm + micro < micro_batches:
                order.append(Action(FORWARD, rank, warm + micro))
            kinds = (INPUT, WEIGHT) if split else (BACKWARD,)
            order += [Action(kind, rank, micro) for kind in kinds]
        orders.append(tuple(order))
    return check(Schedule("capped 1F1B", straight(ranks), micro_batches, tuple(orders)))


def _can_be_kept(caps: Sequence[int], start: Schedule):
    if len(caps) != start.ranks:
        raise ScheduleError(f"{len(caps)} caps for {start.ranks} ranks")
    for rank, (most, needed) in enumerate(zip(caps, in_flight(start), strict=True)):
        if most < needed:
            raise ScheduleError(
                f"rank {rank} may keep {most} activations, but one micro-batch alone needs {needed}"
            )


def _whole(time: float, least: int = 0) -> int:
    if time != int(time) or time < least:
        raise ScheduleError(
            f"a duration is {time}; the search needs whole numbers of a time unit, 1 or more"
        )
    return int(time)


def _solve(start: Schedule, caps, lengths, message: int, horizon: int, seconds: float):
    """({Action: its start} or None in too short a time, the proved bound of the makespan)."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    actions = list(lengths)
    column = {action: number * horizon for number, action in enumerate(actions)}
    end = len(actions) * horizon  # the last column: the makespan
    rows, columns, values, low, high = [], [], [], [], []

    def constrain(terms, lowest, highest):
        for where, value in terms:
            rows.append(len(low))
            columns.append(where)
            values.append(value)
        low.append(lowest)
        high.append(highest)

    def until(action, time, sign):
        """x of this action, for all starts up to `time`."""
        return [(column[action] + t, sign) for t in range(min(time + 1, horizon))]

    for action in actions:
        length = lengths[action]
        constrain(until(action, horizon - 1, 1), 1, 1)
        finish = [(column[action] + t, t + length) for t in range(horizon)]
        constrain([*finish, (end, -1)], -np.inf, 0)
        for any_of in inputs(action, start.stages):
            source = next(one for one in any_of if one in lengths)
            away = start.placement[source.stage] != start.placement[action.stage]
            delay = lengths[source] + message * away
            for time in range(horizon):
                before = until(source, time - delay, -1)
                constrain([*until(action, time, 1), *before], -np.inf, 0)
    for rank, order in enumerate(start.orders):
        for time in range(horizon):
            running = [
                (column[action] + t, 1)
                for action in order
                for t in range(max(time - lengths[action] + 1, 0), time + 1)
            ]
            constrain(running, -np.inf, 1)
            kept = []
            for action in order:
                if action.kind == FORWARD:
                    kept += until(action, time, 1)
                elif action.kind in (BACKWARD, WEIGHT):
                    kept += until(action, time - lengths[action], -1)
            constrain(kept, -np.inf, caps[rank])
    for micro in range(1, start.micro_batches):  # equal micro-batches: they may begin in order
        first, second = Action(FORWARD, 0, micro - 1), Action(FORWARD, 0, micro)
        for time in range(horizon):
            constrain([*until(second, time, 1), *until(first, time, -1)], -np.inf, 0)

    matrix = coo_array((values, (rows, columns)), shape=(len(low), end + 1)).tocsr()
    goal = np.zeros(end + 1)
    goal[end] = 1
    found = milp(
        goal,
        integrality=np.ones(end + 1),
        bounds=Bounds(0, np.append(np.ones(end), horizon)),
        constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": seconds},
    )
    work = max(sum(lengths[action] for action in order) for order in start.orders)
    bound = max(float(np.ceil((found.mip_dual_bound or 0) - 1e-6)), work)
    if found.x is None:
        return None, bound
    starts = found.x[:end].reshape(len(actions), horizon).argmax(axis=1)
    return dict(zip(actions, starts.tolist(), strict=True)), bound
