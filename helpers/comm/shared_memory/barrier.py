"""A barrier between processes of one machine: it sleeps while it waits, and notices dead ranks.

Each ordered pair of ranks has a semaphore, in memory that both ranks have mapped. A rank that
reaches the barrier raises one semaphore for every other rank. There is one per pair, and not one
counter for all ranks, for two reasons. A rank that has already reached its next barrier is not
mistaken for a late rank. And each rank knows which ranks are missing.

When a rank dies, the first survivor that notices leaves the barrier. The other survivors then miss
two ranks. So a rank that leaves writes the reason into the shared memory: itself, or the rank that
it missed. The survivors follow these entries, and all name the rank that died.
"""

import os
import select
import time
from collections.abc import Sequence
from enum import IntEnum

import torch

from helpers.comm.shared_memory.semaphores import NBYTES, Semaphore, available

SPIN = 200e-6  # seconds to poll before going to sleep: waking up takes long
TICK = 0.05  # seconds of sleep after which a rank checks that the others are alive


class Left(IntEnum):
    """Why a rank left and does not return. The shared memory has this + 8 * the rank to blame.

    If several ranks left, the first reason in this order counts: the end of a process is certain.
    """

    NOT = 0
    ENDED = 1  # its process has ended; no rank writes this
    FAILED = 2  # an error of its own
    CLOSED = 3  # it called `close`
    LATE = 4  # the rank to blame is alive, but did not arrive within the timeout
    LOST = 5  # the rank to blame had left


class PeerLost(RuntimeError):
    """Another rank ended or failed while this rank waited for it.

    Attributes:
        rank: the rank to blame, as a rank of the world; not a rank that left only because of it.
    """

    def __init__(self, message: str, rank: int):
        super().__init__(message)
        self.rank = rank

    def __reduce__(self):
        return PeerLost, (str(self), self.rank)


class Barrier:
    """The place where the ranks of a group wait for each other.

    Args:
        memory: (at least `nbytes(size)`,) uint8, the same memory on all ranks, zeros at first.
        rank, size: this rank's place in the group, and the group's size.
        pids: of the ranks' processes.
        names: the ranks' numbers in the world, for messages.
        timeout: seconds to wait for a rank that is alive but does not reach the barrier.

    Raises:
        OSError: the system is not Linux 5.3 (2019) with glibc 2.30, or later.
        PeerLost: one of the processes has already ended.
    """

    @staticmethod
    def nbytes(size: int) -> int:
        return (size + 1) * size * NBYTES

    def __init__(
        self, memory, rank: int, size: int, pids: Sequence[int], names: Sequence[int], timeout
    ):
        if not hasattr(os, "pidfd_open") or not available():
            raise OSError("a barrier in shared memory needs Linux 5.3 with glibc 2.30, or later")
        self.rank, self.pids, self.names, self.timeout = rank, pids, names, timeout
        self.others = [(rank + away) % size for away in range(1, size)]
        # [rank]: why it has left. One number, so that reads and writes are atomic.
        words = memory[: size * NBYTES].view(torch.int32)
        self.gone = words[:: NBYTES // 4].numpy()
        first = memory.data_ptr() + size * NBYTES
        table = [
            [Semaphore(first + (a * size + b) * NBYTES) for b in range(size)] for a in range(size)
        ]
        self.tell = [table[rank][other] for other in range(size)]
        self.heard = [table[other][rank] for other in range(size)]
        self.memory = memory  # keeps the memory mapped while the semaphores are in use
        self.spin = SPIN if len(os.sched_getaffinity(0)) >= size else 0.0
        # A pidfd refers to this process, even if another process gets its number later.
        self.processes: dict[int, int] = {}
        try:
            for other in self.others:
                self.processes[other] = os.pidfd_open(pids[other])
        except ProcessLookupError:
            error = self.lost([other], "the first barrier")
            self.close()
            raise error from None

    def init(self):
        """Make the semaphores that this rank raises. All ranks do this before any rank waits."""
        for other in self.others:
            self.tell[other].init()

    def wait(self, doing: str):
        """Return when every rank has reached the barrier.

        Args:
            doing: the name of the call, for error messages.

        Raises:
            PeerLost: a rank ended or failed before it reached the barrier.
            TimeoutError: a rank is alive, but did not reach the barrier in time.
            RuntimeError: the barrier is closed, or an earlier wait failed and the ranks are out of
                step.
        """
        self.check(doing)
        try:
            for other in self.others:
                self.tell[other].post()
            until = time.monotonic() + self.timeout
            for place, other in enumerate(self.others):
                if not self.heard[other].soon(self.spin):
                    while not self.heard[other].wait(TICK):
                        self.look(self.others[place:], doing, until)
        except BaseException:  # also for an interrupt: the wait may be half done
            self.give_up()
            raise

    def check(self, doing: str):
        """Raise a RuntimeError if this rank has left."""
        if written := self.gone[self.rank]:
            if written == Left.CLOSED:
                raise RuntimeError(f"{doing} cannot run: this shared memory is closed")
            raise RuntimeError(f"{doing} cannot run: an earlier call in this shared memory failed")

    def give_up(self):
        """Tell the other ranks that this rank will not reach a barrier again."""
        self.leave(Left.FAILED)

    def leave(self, reason: Left, blamed: int = 0):
        """Write why this rank leaves. The first reason stays."""
        self.gone[self.rank] = self.gone[self.rank] or reason + 8 * blamed

    def look(self, missing: Sequence[int], doing: str, until: float):
        """Raise if one of these ranks, not heard of so far, will not reach the barrier."""
        left = [other for other in missing if self.gone[other] or self.has_ended(other)]
        # Ask now, not before: a rank may have reached the barrier and then ended.
        missing = [other for other in missing if not self.heard[other].count()]
        if left := [other for other in left if other in missing]:
            raise self.lost(left, doing)
        if missing and time.monotonic() > until:
            self.leave(Left.LATE, missing[0])
            ranks = ", ".join(f"rank {self.names[other]}" for other in missing)
            raise TimeoutError(f"{ranks} did not reach {doing} within {self.timeout:g} s")

    def has_ended(self, other: int) -> bool:
        """Whether the process of this rank has ended; a zombie, not yet waited for, counts too."""
        if other not in self.processes:
            return other != self.rank
        poll = select.poll()
        poll.register(self.processes[other], select.POLLIN)
        return bool(poll.poll(0))

    def lost(self, left: Sequence[int], doing: str) -> PeerLost | TimeoutError:
        """Leave because these ranks left. Returns the error that names the rank to blame."""
        reason, blamed, witness = min((*self.why(other), other) for other in left)
        missed = f"and did not reach {doing}"
        if blamed not in left:
            missed = f"so rank {self.names[witness]} did not reach {doing}"
        if reason == Left.LATE and blamed != self.rank:
            self.leave(Left.LATE, blamed)
            return TimeoutError(f"rank {self.names[blamed]} was too late, {missed}")
        if reason == Left.LATE:
            blamed, how = witness, "has waited too long for this rank"
            missed = f"and did not reach {doing}"
        elif reason == Left.ENDED:
            how = f"has ended (process {self.pids[blamed]})"
        else:
            how = {Left.FAILED: "has failed", Left.CLOSED: "has closed its shared memory"}[reason]
        self.leave(Left.LOST, blamed)
        return PeerLost(f"rank {self.names[blamed]} {how}, {missed}", self.names[blamed])

    def why(self, other: int) -> tuple[Left, int]:
        """Return why this rank left, and the rank to blame: itself, or the end of the chain."""
        seen, late = [], other
        while other not in seen:
            seen.append(other)
            reason, blamed = Left(self.gone[other] & 7), int(self.gone[other] >> 3)
            if reason == Left.NOT:
                return (Left.ENDED if self.has_ended(other) else Left.LATE), other
            if reason not in (Left.LATE, Left.LOST):
                return reason, other
            late = blamed if reason == Left.LATE else late
            other = blamed
        # The late rank arrived at last, and then missed the rank that had waited.
        return Left.LATE, late

    def close(self):
        """Close the descriptors; this rank does not reach a barrier again."""
        self.leave(Left.CLOSED)
        while self.processes:
            os.close(self.processes.popitem()[1])
