"""Two clocks for an engine: real time, and a virtual time in which a step costs what a rule says.

With the virtual clock the model computes the same tokens, but the times are the same on every
machine. Tests and drawings use it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from helpers.inference.engine.plan import Work


class Clock(Protocol):
    """The time since a run began, in seconds.

    Attributes:
        now: the seconds so far.
    """

    @property
    def now(self) -> float: ...

    def start(self):
        """Begin at 0."""

    def wait(self, until: float):
        """Pass the time until then; return at once if it is over."""

    def spend(self, work: Work):
        """Account for a step that has just been computed."""


class RealTime:
    """The machine's clock."""

    def __init__(self):
        self.start()

    def start(self):
        self._began = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self._began

    def wait(self, until: float):
        time.sleep(max(0.0, until - self.now))

    def spend(self, work: Work):
        pass  # the step itself took the time


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """The seconds of a step: a part that every step has, and parts that grow with the work.

    Attributes:
        step: for every step: reading the weights, starting the operators.
        token: for each token that passes through the model.
        read: for each cached token that attention reads.
    """

    step: float = 1.0
    token: float = 0.0
    read: float = 0.0

    def __call__(self, work: Work) -> float:
        return self.step + self.token * work.tokens + self.read * work.read


class Virtual:
    """A clock that moves only when told to.

    Args:
        cost: the seconds of a step.
    """

    def __init__(self, cost: Callable[[Work], float] | None = None):
        self.cost = cost or StepCost()
        self.now = 0.0

    def start(self):
        self.now = 0.0

    def wait(self, until: float):
        self.now = max(self.now, until)

    def spend(self, work: Work):
        self.now += self.cost(work)
