"""A barrier between processes of one machine that sleeps while it waits, and notices the dead.

For each pair of ranks there is a semaphore, in memory that both have mapped: coming to the barrier,
a rank raises the semaphore that each other one waits for. One for each pair, and not one counter
for all: so a rank that is ahead, at its next barrier already, is not mistaken for one that is late,
and it is known who did not come.

When one rank dies, the first survivor that notices leaves, and then others miss two ranks. So a
rank that leaves writes into the shared memory why: because of itself, or because of which other.
Those that miss it follow what is written there, and all name the rank that died.
"""

import os
import select
import time
from collections.abc import Sequence
from enum import IntEnum

import torch

from helpers.comm.shared_semaphores import NBYTES, Semaphore, available

SPIN = 200e-6  # seconds to look again and again before going to sleep: a sleeper wakes up late
TICK = 0.05  # seconds asleep after which a rank looks whether the others are alive


class Left(IntEnum):
    """Why a rank does not come again; in shared memory as this + 8 * the rank that is to blame.

    Of several, the first in this order is named: a process that has ended without a word is sure.
    """

    NOT = 0
    ENDED = 1  # the process has; nobody writes this
    FAILED = 2  # its own error
    CLOSED = 3  # its own wish
    LATE = 4  # it waited longer than its timeout for the one to blame, which lives
    LOST = 5  # the one to blame had left


class PeerLost(RuntimeError):
    """Another rank has ended or failed, and this one waited for it.

    Attributes:
        rank: which, as a rank of the world. Not one that has left only because of another.
    """

    def __init__(self, message: str, rank: int):
        super().__init__(message)
        self.rank = rank

    def __reduce__(self):
        return PeerLost, (str(self), self.rank)


class Barrier:
    """Where the ranks of a group wait for each other.

    Args:
        memory: (at least `nbytes(size)`,) uint8, the same memory on all ranks, zeros at first.
        rank, size: this rank's place in the group, and how many there are.
        pids: of the ranks' processes.
        names: the ranks' numbers in the world, for messages.
        timeout: seconds to wait for a rank that lives, and does not come.

    Raises:
        OSError: this is not Linux, or one from before 2019 (5.3, with glibc 2.30).
        PeerLost: one of the processes has ended already.
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
        # [rank]: why it has left. One number, so that it is written and read in one piece.
        words = memory[: size * NBYTES].view(torch.int32)
        self.gone = words[:: NBYTES // 4].numpy()
        first = memory.data_ptr() + size * NBYTES
        table = [
            [Semaphore(first + (a * size + b) * NBYTES) for b in range(size)] for a in range(size)
        ]
        self.tell = [table[rank][other] for other in range(size)]
        self.heard = [table[other][rank] for other in range(size)]
        self.memory = memory  # mapped as long as the semaphores in it are used
        self.spin = SPIN if len(os.sched_getaffinity(0)) >= size else 0.0
        # A pidfd stands for this process, even when its number is given to another later.
        self.processes: dict[int, int] = {}
        try:
            for other in self.others:
                self.processes[other] = os.pidfd_open(pids[other])
        except ProcessLookupError:
            error = self.lost([other], "the first barrier")
            self.close()
            raise error from None

    def init(self):
        """Make the semaphores that this rank raises. All ranks do, before any waits."""
        for other in self.others:
            self.tell[other].init()

    def wait(self, doing: str):
        """Return when every rank has come here.

        Args:
            doing: what for, in an error's words.

        Raises:
            PeerLost: a rank has ended, or failed, without coming.
            TimeoutError: a rank lives, and has not come.
            RuntimeError: it is closed, or an earlier wait failed: the ranks are out of step.
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
        except BaseException:  # also when interrupted: it might be in the middle
            self.give_up()
            raise

    def check(self, doing: str):
        """Raise a RuntimeError if this rank has left."""
        if written := self.gone[self.rank]:
            if written == Left.CLOSED:
                raise RuntimeError(f"this shared memory is closed; no {doing}")
            raise RuntimeError(f"an earlier call in this shared memory failed; no {doing}")

    def give_up(self):
        """Let the others know that this rank will not come to a barrier again."""
        self.leave(Left.FAILED)

    def leave(self, reason: Left, blamed: int = 0):
        """Write why this rank leaves. The first reason stays."""
        self.gone[self.rank] = self.gone[self.rank] or reason + 8 * blamed

    def look(self, missing: Sequence[int], doing: str, until: float):
        """Raise if one of these, not heard of so far, will not come."""
        left = [other for other in missing if self.gone[other] or self.has_ended(other)]
        # asked after that: it may have come here, and ended then
        missing = [other for other in missing if not self.heard[other].count()]
        if left := [other for other in left if other in missing]:
            raise self.lost(left, doing)
        if missing and time.monotonic() > until:
            self.leave(Left.LATE, missing[0])
            ranks = ", ".join(f"rank {self.names[other]}" for other in missing)
            raise TimeoutError(f"{ranks} did not come to {doing} within {self.timeout:g} s")

    def has_ended(self, other: int) -> bool:
        """True also while its parent has not asked how it ended (a zombie)."""
        if other not in self.processes:
            return other != self.rank
        poll = select.poll()
        poll.register(self.processes[other], select.POLLIN)
        return bool(poll.poll(0))

    def lost(self, left: Sequence[int], doing: str) -> PeerLost | TimeoutError:
        """Leave because these have left. Returns the error that names the rank to blame."""
        reason, blamed, witness = min((*self.why(other), other) for other in left)
        missed = f"and did not come to {doing}"
        if blamed not in left:
            missed = f"so rank {self.names[witness]} did not come to {doing}"
        if reason == Left.LATE and blamed != self.rank:
            self.leave(Left.LATE, blamed)
            return TimeoutError(f"rank {self.names[blamed]} did not come in time, {missed}")
        if reason == Left.LATE:
            blamed, how = witness, "has waited too long for this rank"
        elif reason == Left.ENDED:
            how = f"has ended (process {self.pids[blamed]})"
        else:
            how = {Left.FAILED: "has failed", Left.CLOSED: "has closed its shared memory"}[reason]
        self.leave(Left.LOST, blamed)
        return PeerLost(f"rank {self.names[blamed]} {how}, {missed}", self.names[blamed])

    def why(self, other: int) -> tuple[Left, int]:
        """Why this rank has left, and which rank is to blame: itself, or the end of the chain."""
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
        return Left.LATE, late  # the late one has come at last, and lost the one that had waited

    def close(self):
        """Close the descriptors; this rank does not come again."""
        self.leave(Left.CLOSED)
        while self.processes:
            os.close(self.processes.popitem()[1])
