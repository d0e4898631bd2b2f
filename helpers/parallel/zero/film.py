"""Record each byte of a rank, by unit and kind, during a step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Film:
    """The events of a step, as plain data.

    Attributes:
        events: dicts in order of time. "time": seconds since the start. "unit": the unit's name.
            "kind": "parameters" (this rank's shard in stage 3, else all), "gathered", "gradients",
            "gradient shard", "master copies" or "optimizer". "state": what happens with these bytes
            from this time on: "held", "gathering", "ready", "in use", "filling", "sending",
            "updating" or "freed". "bytes": how many bytes of this unit and kind this rank has from
            this time on.
    """

    def __init__(self):
        self.events: list[dict] = []
        self.held: dict[tuple[str, str], dict[int, int]] = {}  # -> row number -> bytes
        self.began = time.perf_counter()

    def note(self, unit: str, row: int, kind: str, state: str, nbytes: int):
        """Add an event: `kind` of this row of the unit has `nbytes` bytes from now on."""
        rows = self.held.setdefault((unit, kind), {})
        rows[row] = nbytes
        self.events.append(
            {
                "time": time.perf_counter() - self.began,
                "unit": unit,
                "kind": kind,
                "state": state,
                "bytes": sum(rows.values()),
            }
        )


class Filmed(Protocol):
    """An owner that tells its `film`, while it has one, what happens with its rows."""

    film: Film | None

    def open_film(self):
        """Add the bytes of every row to the film."""


@contextmanager
def filming(owner: Filmed) -> Iterator[Film]:
    """Record the steps of this block on this rank. The film opens with the bytes held before.

    with filming(trainer.owner) as film:
        trainer.step(batch)
    film.events
    """
    owner.film = Film()
    try:
        owner.open_film()
        yield owner.film
    finally:
        owner.film = None
