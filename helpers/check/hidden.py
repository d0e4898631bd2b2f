"""Inputs that grading draws anew, so that no submission knows them.

A student's own check always uses the same inputs: a finding can be repeated. Grading sets a secret,
and the same check then uses other numbers, and more cases. The judge and the ranks draw alike.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

MORE = 3  # drawn cases of an exercise

_secret: ContextVar[int | None] = ContextVar("secret", default=None)


@contextmanager
def drawn_from(secret: int | None) -> Iterator[None]:
    """Draw the inputs of checks from this number, inside the block; None: the usual inputs."""
    token = _secret.set(secret)
    try:
        yield
    finally:
        _secret.reset(token)


def secret() -> int | None:
    return _secret.get()


def seed(usual: int) -> int:
    """Return the seed of a generator."""
    given = secret()
    return usual if given is None else random.Random(f"{given} {usual}").getrandbits(31)


def shift(most: int) -> int:
    """Return what to add to numbers that the check counts up: 0, or 1 to `most` while grading."""
    given = secret()
    return 0 if given is None else random.Random(f"{given}").randint(1, most)


def more(draw: Callable[[random.Random], object], count: int = MORE) -> list:
    """Return further cases, `draw(random)` each, while grading; else none."""
    given = secret()
    if given is None:
        return []
    return [draw(random.Random(f"{given} case {number}")) for number in range(count)]


def carried(run: Callable) -> Callable:
    """Return the function for ranks, where it draws as here."""
    given = secret()
    return run if given is None else partial(drawing, run, given)


def drawing(run: Callable, secret: int, /, *args, **kwargs):
    with drawn_from(secret):
        return run(*args, **kwargs)
