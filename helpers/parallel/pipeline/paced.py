"""Paced stages: each computation sleeps for its planned time, and the messages are real.

Four stages on two cores lend each other their idle cores, so a bubble that is measured there says
nothing about four processors. A stage that sleeps needs no core. So the measured timeline of paced
stages shows the schedule's own bubble, and what the messages add to it. Label it as paced.
"""

import time
from collections.abc import Iterable
from dataclasses import replace

import torch

from helpers.comm.mesh import Mesh
from helpers.comm.point_to_point import Buffers, between_neighbours
from helpers.parallel.pipeline.execution import Execution
from helpers.parallel.pipeline.stages import AXIS
from helpers.plans.schedules import FORWARD, WEIGHT, Action, Schedule, check
from helpers.plans.schedules.times import UNIT, Costs, Span


def paced(
    mesh: Mesh,
    schedule: Schedule,
    costs: Costs = UNIT,
    *,
    seconds: float = 0.01,
    numbers: int = 1024,
) -> list[Span]:
    """Run a schedule on the axis "pp" with stages that sleep. Every rank calls it.

    Args:
        costs: of the computations, in any unit. `costs.message` is not used: messages take their
            own time.
        seconds: of one unit.
        numbers: in each message, float32: 2 or more, for its stage and its micro-batch.

    Returns:
        This rank's spans, in seconds of this machine's monotonic clock. `merged` joins the ranks'.

    Raises:
        ScheduleError: the schedule cannot run.
        RuntimeError: a stage received another message than it needed.
        ValueError: fewer than 2 numbers.
    """
    if numbers < 2:
        raise ValueError(f"a message names its stage and its micro-batch: 2 numbers, not {numbers}")
    link = between_neighbours(mesh, AXIS)
    run = Execution(check(schedule), link)
    buffers = Buffers(numbers, torch.float32, "cpu")
    # The first run makes buffers and connections. It ends on the first stage, after all others.
    run.run(Sleeping(schedule, costs, 0.0, numbers), buffers)
    run.run(Sleeping(schedule, costs, seconds, numbers), buffers)
    return run.spans


class Sleeping:
    """Stages that sleep, for an Execution. A message carries its sender's stage and micro-batch."""

    def __init__(self, schedule: Schedule, costs: Costs, seconds: float, numbers: int):
        self.schedule, self.costs = schedule, costs
        self.seconds, self.numbers = seconds, numbers

    def shape(self, micro: int) -> tuple[int, ...]:
        return (self.numbers,)

    def compute(self, action: Action, given: torch.Tensor | None) -> torch.Tensor | None:
        forward = 1 if action.kind == FORWARD else -1
        if given is not None:
            source, micro = given[0].item(), given[-1].item()
            if (source, micro) != (action.stage - forward, action.micro):
                raise RuntimeError(
                    f"{action} received micro-batch {micro:.0f} of stage {source:.0f}: the ranks "
                    "send and receive in different orders"
                )
        time.sleep(self.costs.of(action) * self.seconds)
        target = action.stage + forward
        if action.kind == WEIGHT or not 0 <= target < self.schedule.stages:
            return None
        made = torch.full((self.numbers,), float(action.micro))
        made[0] = action.stage
        return made


def merged(ranks: Iterable[Iterable[Span]], *, seconds: float = 1.0) -> tuple[Span, ...]:
    """The spans of all ranks on one axis that begins with the first computation.

    Args:
        ranks: the spans of each rank of one machine.
        seconds: of one unit of the result.
    """
    every = [span for spans in ranks for span in spans]
    first = min(span.start for span in every)
    return tuple(
        replace(span, start=(span.start - first) / seconds, stop=(span.stop - first) / seconds)
        for span in sorted(every, key=lambda span: span.start)
    )
