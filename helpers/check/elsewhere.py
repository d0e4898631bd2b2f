"""Where a student's function runs: here and on ranks of this machine, or in a sandbox.

A check asks `place()` to call the function, and judges what comes back. Grading sets another place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from helpers.check.limit import limit
from helpers.runtime.launch import launch
from helpers.runtime.runs import Runs

SECONDS = 60.0  # for a call of the function; an exercise needs far less


class Failed(Exception):
    """The function failed elsewhere. The text tells how, as a finding of the check."""


class Place(Protocol):
    """Has these two. A place with ranks that can send and receive alone also has `messages`: see
    `helpers.check.grading.stand_in`."""

    def call(self, fn: Callable, arguments: tuple) -> Any:
        """Return fn(*arguments), which may write into the arguments."""

    def launch(self, run: Callable, workers: int, fn: Callable, kwargs: dict, timeout: float):
        """Return the results of run(worker, solve=fn, **kwargs) on fresh ranks, by rank."""


class Here:
    """The student's own kernel. The reference may run on the ranks of the student's function."""

    beside = True

    def call(self, fn: Callable, arguments: tuple) -> Any:
        with np.errstate(all="ignore"), limit(SECONDS):  # the finding shows what came out
            return fn(*arguments)

    def launch(self, run, workers, fn, kwargs, timeout) -> Runs:
        return launch(run, workers, device="cpu", timeout=timeout, solve=fn, **kwargs)


_place: ContextVar[Place] = ContextVar("place", default=Here())  # noqa: B039


def place() -> Place:
    return _place.get()


def here(run: Callable, workers: int, fn: Callable | None, kwargs: dict) -> Runs:
    """Run a function of the course on ranks of this machine."""
    return launch(run, workers, device="cpu", solve=fn, **kwargs)


@contextmanager
def at(other: Place) -> Iterator[None]:
    """Run students' functions at another place, inside the block."""
    token = _place.set(other)
    try:
        yield
    finally:
        _place.reset(token)
