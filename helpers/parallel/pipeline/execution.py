"""Run one rank's order of a schedule: post receives, compute, send.

What is computed is an argument. So the same run drives the training engine and paced stages.
"""

from typing import Protocol

import torch

from helpers.comm.point_to_point import Buffers, PointToPoint
from helpers.measure.clock import Moments, wait_for_device
from helpers.plans.schedules import (
    BACKWARD,
    FORWARD,
    RECEIVE,
    WEIGHT,
    Action,
    Message,
    Schedule,
    one_at_a_time,
    with_messages,
)
from helpers.plans.schedules.times import Span

# Receives are posted at least so many computations early: gloo sends a message's numbers when the
# receiver has announced its buffer. With 1, steps of 1F1B waited longer for messages (measured).
AHEAD = 2


class Work(Protocol):
    """What a run computes."""

    def shape(self, micro: int) -> tuple[int, ...]:
        """The shape of this micro-batch's activation between two stages."""

    def compute(self, action: Action, given: torch.Tensor | None) -> torch.Tensor | None:
        """Compute one action, and return what the neighbour stage needs.

        Args:
            given: F: the previous stage's output; None on the first stage. B and I: the gradient
                of this stage's output; None on the last stage. W: None.

        Returns:
            F: the output; None on the last stage. B and I: the gradient of the input; None on the
            first stage. W: None.
        """


class Execution:
    """One rank's part of a schedule, ready to run with buffers that are made once.

    Args:
        schedule: as checked.
        link: of the axis "pp".

    Attributes:
        moments: of each computation of the last run: its start, its end, and its Action.
    """

    def __init__(self, schedule: Schedule, link: PointToPoint):
        self.schedule, self.link = schedule, link
        self.steps = with_messages(schedule, ahead=AHEAD)[link.rank]
        # On a GPU the first use of a kernel or a library may wait until the GPU is idle. A message
        # under way would keep it busy. So in the first run none is under way during a computation.
        self.first = None
        if link.channels:
            self.first = with_messages(one_at_a_time(schedule), ahead=0)[link.rank]
        self.clock: Moments | None = None
        self.moments: list[tuple] = []

    @property
    def spans(self) -> list[Span]:
        """When each computation of the last run ran, in seconds of this machine's monotonic clock.

        The clock is the same for all processes. On a GPU a span is the GPU's own time. Waiting for
        a message is not part of a span.
        """
        seconds = self.clock.seconds if self.clock else None
        return [
            Span(self.link.rank, seconds(start), seconds(end), action)
            for start, end, action in self.moments
        ]

    def run(self, work: Work, buffers: Buffers):
        """Run every step in order.

        Where NCCL moves the messages, the first run takes one micro-batch after another.
        """
        ready: dict[tuple, torch.Tensor] = {}  # (from stage, to stage, micro-batch) -> tensor
        posted: dict[tuple, tuple] = {}  # the same -> (its receive, buffer)
        used: dict[tuple, list] = {}  # (stage, micro-batch) -> buffers until its backward is done
        self.clock = self.clock or Moments(torch.device(buffers.device))
        self.moments = []
        alone, self.first = self.first, None
        for step in alone or self.steps:
            if alone and isinstance(step, Action):
                self.link.finish()
                wait_for_device()
            if isinstance(step, Message):
                place = step.source, step.target, step.micro
                if step.kind == RECEIVE:
                    buffer = buffers.take(work.shape(step.micro))
                    used.setdefault((step.target, step.micro), []).append(buffer)
                    posted[place] = self.link.receive(buffer, step.peer), buffer
                else:
                    self.link.send(ready.pop(place), step.peer)
                continue
            forward = 1 if step.kind == FORWARD else -1
            place = step.stage - forward, step.stage, step.micro
            if place in posted:
                message, given = posted.pop(place)
                if message is not None:
                    message.wait()
            else:  # None for W: its I has it
                given = ready.pop(place, None)
            start = self.clock.mark()
            made = work.compute(step, given)
            self.moments.append((start, self.clock.mark(), step))
            if made is not None:
                ready[step.stage, step.stage + forward, step.micro] = made
            if step.kind in (BACKWARD, WEIGHT):
                for buffer in used.pop((step.stage, step.micro), ()):
                    buffers.give_back(buffer)
        self.link.finish()
