"""When each computation of a schedule runs, if each takes as long as planned; what ranks keep.

    ideal   m (F + I + W): a rank's computations alone, without a bubble
    bubble  the idle time of a rank: of the whole step, or of the rank's own span
    span    from the start of a rank's first computation to the end of its last

There are two conventions for a bubble. That of GPipe and 1F1B is (p - 1)/m over the ideal time, and
(p - 1)/(m + p - 1) over the total time. `over_ideal` and `over_total` turn one into the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from helpers.plans.schedules.action import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Schedule,
    inputs,
)
from helpers.plans.schedules.validity import run


@dataclass(frozen=True, kw_only=True)
class Costs:
    """How long each computation of a stage takes, in any unit.

    Attributes:
        forward: F.
        input: I, the gradient of the stage's input.
        weight: W, the gradient of its weights.
        backward: B, the whole backward; by default I + W.
        message: from the end of a computation on one rank to the moment when another rank has its
            result. The sender computes meanwhile.

    Raises:
        ValueError: a duration is negative or infinite.
    """

    forward: float = 1.0
    input: float = 1.0
    weight: float = 1.0
    backward: float | None = None
    message: float = 0.0

    def __post_init__(self):
        for name, value in vars(self).items():
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}; a duration is 0 or more, and finite")

    def of(self, action: Action) -> float:
        """How long this computation takes."""
        whole = self.input + self.weight if self.backward is None else self.backward
        times = {FORWARD: self.forward, BACKWARD: whole, INPUT: self.input, WEIGHT: self.weight}
        return times[action.kind]

    def divided(self, parts: int) -> "Costs":
        """The costs of a stage that has 1/parts of the layers; a message takes as long as before.

        With v stages on each rank, `costs.divided(v)` compares equal models.
        """
        times = {name: value for name, value in vars(self).items() if value and name != "message"}
        return replace(self, **{name: value / parts for name, value in times.items()})


@dataclass(frozen=True)
class Span:
    """One computation on the axis of time: `action` runs on `rank` from `start` to `stop`."""

    rank: int
    start: float
    stop: float
    action: Action


UNIT = Costs()


def timeline(schedule: Schedule, costs: Costs = UNIT) -> tuple[Span, ...]:
    """Each computation as early as its rank and its inputs allow, in the order of the schedule.

    Returns:
        One Span for each Action, in an order in which they can run.

    Raises:
        ScheduleError: the schedule cannot run.
    """
    free, ends, spans = [0.0] * schedule.ranks, {}, []
    for rank, action in run(schedule):
        start = free[rank]
        for any_of in inputs(action, schedule.stages):
            source = next(one for one in any_of if one in ends)
            away = schedule.placement[source.stage] != rank
            start = max(start, ends[source] + (costs.message if away else 0.0))
        stop = start + costs.of(action)
        free[rank] = ends[action] = stop
        spans.append(Span(rank, start, stop, action))
    return tuple(spans)


@dataclass(frozen=True)
class Bubble:
    """How much of a timeline is idle. With unequal stages, the busiest rank's idle time counts.

    Attributes:
        makespan: from the first start to the last end, over all ranks.
        busy: for each rank, the sum of its computations.
        spans: for each rank, from its first start to its last end.
    """

    makespan: float
    busy: tuple[float, ...]
    spans: tuple[float, ...]

    @property
    def idle(self) -> float:
        """Idle time of the whole step, t_pb: every rank waits until the last one is done."""
        return self.makespan - max(self.busy)

    @property
    def over_ideal(self) -> float:
        """Idle time over the busiest rank's work: t_pb / t_id, as Megatron-LM writes it."""
        return self.idle / max(self.busy)

    @property
    def over_total(self) -> float:
        """Idle time over the whole step: t_pb / (t_pb + t_id), as GPipe writes it."""
        return self.idle / self.makespan

    @property
    def in_span(self) -> float:
        """The longest span of a rank, less the busiest rank's work: the zero-bubble paper's bubble.

        A step costs no more than this if a rank may update before the others are done.
        """
        return max(self.spans) - max(self.busy)


def bubble(spans: Sequence[Span]) -> Bubble:
    """Count the idle time of a timeline, ideal or measured.

    Raises:
        ValueError: there is no Span.
    """
    if not spans:
        raise ValueError("no span to count: a timeline has one for each computation")
    own = {}
    for span in spans:
        own.setdefault(span.rank, []).append(span)
    ranks = [own[rank] for rank in sorted(own)]
    return Bubble(
        makespan=max(s.stop for s in spans) - min(s.start for s in spans),
        busy=tuple(sum(s.stop - s.start for s in each) for each in ranks),
        spans=tuple(max(s.stop for s in each) - min(s.start for s in each) for each in ranks),
    )


def over_ideal(over_total: float) -> float:
    """The bubble over the ideal time, from the bubble over the total time."""
    return over_total / (1 - over_total)


def over_total(over_ideal: float) -> float:
    """The bubble over the total time, from the bubble over the ideal time."""
    return over_ideal / (1 + over_ideal)


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
