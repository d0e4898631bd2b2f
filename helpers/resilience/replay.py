"""Replay faults: how much of the time is training that counts?

All times have the unit of the faults, for example days.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from helpers.resilience.faults import Fault


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where the time of a job went. The parts add up to the whole time.

    Attributes:
        trained: training whose checkpoint was finished.
        written: writing these checkpoints.
        lost: training and writing since the last checkpoint, at each fault.
        down: restarts, and waits for a server.
        faults: how many stopped the job.
    """

    trained: float
    written: float
    lost: float
    down: float
    faults: int

    @property
    def goodput(self) -> float:
        """The share of the time that is training which counts."""
        return self.trained / (self.trained + self.written + self.lost + self.down)


def replay(
    stops: Iterable[float | tuple[float, float]],
    until: float,
    *,
    every: float,
    write: float,
    restart: float,
) -> Outcome:
    """Run a job from 0 to `until`; each stop loses what is not in a checkpoint.

    Args:
        stops: the times of faults, sorted; or pairs (time, wait): the job lacks a server so long.
        every, write, restart: time between checkpoints, to write one, to restart after a fault.
            A fault during a restart begins the restart anew.

    Raises:
        ValueError: `every` is not positive, or another time is negative.
    """
    if every <= 0 or min(write, restart, until) < 0:
        raise ValueError("every is to be positive, and write, restart and until 0 or more")
    trained = written = lost = down = 0.0
    begin, faults = 0.0, 0  # the job trains again from `begin` on
    for stop in [*stops, (until, None)]:
        time, wait = stop if isinstance(stop, tuple) else (stop, 0.0)
        if time > until:
            time, wait = until, None
        if wait is None and begin >= until:
            down -= begin - until  # the last restart goes on after the end
            break
        if time >= begin:
            saved = int((time - begin) / (every + write) * (1 + 1e-12))
            trained, written = trained + saved * every, written + saved * write
            rest = time - begin - saved * (every + write)
            if wait is None:  # the end is no fault: nothing is lost
                trained, written = trained + min(rest, every), written + max(rest - every, 0.0)
                break
            lost += rest
        else:
            down -= begin - time
        faults += 1
        down += wait + restart
        begin = time + wait + restart
    return Outcome(trained=trained, written=written, lost=lost, down=down, faults=faults)


def stops_of_job(
    faults: Sequence[Fault], *, servers: int, of: int, evict: int | None = None, seed: int = 0
) -> list[tuple[float, float]]:
    """Place a job on some servers of a cluster, and find when their faults stop it.

    A server that fails is replaced at once by a healthy one that is not in use. If there is none,
    the job waits until a server is repaired.

    Args:
        faults: of all servers, sorted by time.
        servers: of the job; all are needed.
        of: servers of the cluster.
        evict: a server with so many faults is never used again. None: each may come back.
        seed: which servers the job gets.

    Returns:
        (time, wait) for `replay`.

    Raises:
        ValueError: the cluster is too small, or eviction leaves too few servers.
    """
    if not 0 < servers <= of:
        raise ValueError(f"a job of {servers} servers does not fit into a cluster of {of}")
    order = list(range(of))
    random.Random(seed).shuffle(order)
    used, spare = set(order[:servers]), order[servers:]
    back: dict[int, float] = {}  # server -> when it is repaired
    seen: Counter[int] = Counter()
    stops, ready = [], 0.0
    for fault in faults:
        seen[fault.server] += 1
        evicted = evict is not None and seen[fault.server] >= evict
        back[fault.server] = max(
            back.get(fault.server, 0.0), float("inf") if evicted else fault.end
        )
        if fault.server not in used:
            continue
        used.discard(fault.server)
        spare.append(fault.server)
        at = max(fault.start, ready)  # while the job waits, a further fault adds to the wait
        best = min(spare, key=lambda server: max(back.get(server, 0.0), at))  # the first in line
        ready = max(back.get(best, 0.0), at)
        if ready == float("inf"):
            raise ValueError(f"evicting after {evict} faults leaves too few servers")
        spare.remove(best)
        used.add(best)
        stops.append((fault.start, ready - fault.start))
    return stops
