"""Train on while ranks die: the living go back to the last commit, cut its state anew, and go on.

The commit is the newest checkpoint in memory whose shards all exist. If partners died together, it
is the newest whole one on the disk. The loss curve is that of an undisturbed run at equal steps;
what a failure costs is the steps since the commit.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException

from helpers.comm.messages import Peers
from helpers.data.batch import Batch
from helpers.parallel.strategy import Strategy
from helpers.resilience.crew import Crew
from helpers.resilience.in_memory import InMemory
from helpers.state import seal
from helpers.state.facts import exchange
from helpers.state.seal import BrokenCheckpoint

MEMORY, DISK, START = "memory", "disk", "start"
TRIES = 3  # of a step, on the same ranks


@dataclass(kw_only=True)
class Survived:
    """What one rank has seen.

    Attributes:
        losses: of each step that it has computed, by number.
        computed: how many steps, with those that it computed again.
        epochs: for each group that has trained: names of its ranks, and where the state came from
            ("memory", "disk" or "start"), the step reached before and the step it went back to, and
            the seconds from the failure to the first step.
        lost: steps that were computed and given up.
    """

    losses: dict[int, float] = field(default_factory=dict)
    computed: int = 0
    epochs: list[dict] = field(default_factory=list)

    @property
    def lost(self) -> int:
        return sum(max(0, epoch["reached"] - epoch["back_to"]) for epoch in self.epochs)


def survive(
    crew: Crew,
    make: Callable[[int], Strategy],
    batch_of: Callable[[int], Batch],
    steps: int,
    *,
    every: int = 1,
    folder: str | PathLike | None = None,
    save_every: int = 50,
) -> Survived:
    """Train `steps` updates on the ranks of a crew, whoever dies or comes in. Every rank calls it.

    Args:
        make: `make(ranks)` makes a strategy for this many ranks, all of them.
        batch_of: `batch_of(k)` is the global batch of step k, on any ranks.
        every: steps between two commits in memory.
        folder, save_every: of the commits on a disk that all ranks see; None: no such commits.

    Raises:
        RuntimeError: the same step has failed three times on the same ranks: it is no lost rank.
    """
    found, memory, done, failure, times = Survived(), InMemory(), 0, None, 0
    began, reached = time.monotonic(), 0  # when it failed, and at which step; until it trains again
    while True:
        try:
            if not crew.form():
                return found
            if crew.away:
                memory, crew.away = InMemory(), False
            strategy = make(len(crew.members))
            source, done = back(strategy, memory, folder)
            first = done
            while done < steps:
                if (done - first) % every == 0:
                    memory.save(strategy, updates=done)
                batch = batch_of(done).shard(strategy.data_rank, strategy.data_size)
                found.losses[done] = float(strategy.step(batch).loss)
                done += 1
                found.computed += 1
                if done == first + 1:
                    found.epochs.append(
                        {"ranks": list(crew.members), "source": source, "reached": reached}
                        | {"back_to": first, "seconds": time.monotonic() - began}
                    )
                    began, reached = None, 0
                if folder is not None and done % save_every == 0:
                    # A rank that wakes up in the middle of a save must not write into this one.
                    strategy.save(Path(folder, f"step_{done:06d}_{crew.epoch:04d}"), updates=done)
            crew.finish()
            strategy.close()
        except (RuntimeError, CheckpointException) as error:
            began, reached = began or time.monotonic(), max(reached, done)
            crew.failed(error)
            # A slow rank may come in again and again, before it is in the group. Twice may be
            # chance: a rank is lost at the step where a connection has broken before.
            before, failure = failure, (done, crew.members)
            times = times + 1 if failure == before and not crew.joined else 1
            if times == TRIES:
                raise


def back(strategy: Strategy, memory: InMemory, folder) -> tuple[str, int]:
    """Restore the last commit. Returns where it was, and its step."""
    try:
        return MEMORY, memory.restore(strategy)["updates"]
    except BrokenCheckpoint:  # every rank raises it
        memory.keep_only(0)
    newest = seal.newest(folder) if folder is not None and Peers().rank == 0 else None
    [name, *_] = exchange(newest and newest.name)  # one rank chooses: a writing may end just now
    return (DISK, strategy.restore(Path(folder, name))["updates"]) if name else (START, 0)
