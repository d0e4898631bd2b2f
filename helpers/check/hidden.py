"""Inputs that grading draws anew, so that no submission knows them.

A student's own check always uses the same inputs: a finding can be repeated. Grading sets a secret,
and the same check then uses other numbers, and more cases. The judge alone draws: a sandbox gets
the numbers of its case, and never the secret.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

MORE = 3  # drawn cases of an exercise

_secret: ContextVar[int | None] = ContextVar("secret", default=None)
_drawn: ContextVar[dict[str, object] | None] = ContextVar("drawn", default=None)


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
    return number(usual, f"{usual}", lambda random: random.getrandbits(31))


def normal(seed_: int, *shape: int) -> torch.Tensor:
    """Return float64 numbers of this shape from a generator of their own."""
    generator = torch.Generator().manual_seed(seed(seed_))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def shift(most: int, rank: int = 0) -> int:
    """Return what to add to numbers that the check counts up: 0, or 1 to `most` while grading.

    Args:
        rank: whose numbers, where one rank's must not tell another's.
    """
    return number(0, f"to {most} of rank {rank}", lambda random: random.randint(1, most))


def shifts(count: int, most: int, name: str) -> list[int]:
    """Return a shift for each of so many numbers of this name. No number tells another."""
    every = range(1, most + 1)
    return number([0] * count, f"{count} to {most} {name}", lambda r: r.choices(every, k=count))


def number(usual, name: str, draw: Callable[[random.Random], object]):
    """Return the number of this name: drawn, where the secret is; drawn before, in a sandbox."""
    given, drawn = secret(), _drawn.get()
    if given is None:
        return usual if drawn is None else drawn[name]
    found = draw(random.Random(f"{given} {name}"))
    if drawn is not None:
        drawn[name] = found
    return found


def more(draw: Callable[[random.Random], object], count: int = MORE) -> list:
    """Return further cases, `draw(random)` each, while grading; else none."""
    given = secret()
    if given is None:
        return []
    return [draw(random.Random(f"{given} case {number}")) for number in range(count)]


def drawing(run: Callable, secret: int | None, /, *args, **kwargs) -> tuple:
    """On a rank of the judge: the result, and the numbers that were drawn on the way, by name."""
    drawn: dict[str, object] | None = None if secret is None else {}
    with drawn_from(secret), given(drawn):
        return run(*args, **kwargs), drawn or {}


def reading(run: Callable, drawn: dict[str, object], /, *args, **kwargs):
    """On a rank in a sandbox: the result, with numbers that were drawn by the judge."""
    with given(drawn):
        return run(*args, **kwargs)


@contextmanager
def given(drawn: dict[str, object] | None) -> Iterator[None]:
    """Keep drawn numbers here, inside the block; or read them, where no secret is."""
    token = _drawn.set(drawn)
    try:
        yield
    finally:
        _drawn.reset(token)
