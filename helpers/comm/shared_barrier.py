"""A barrier between processes of one machine that sleeps while it waits, and notices the dead.

For each pair of ranks there is a semaphore, in memory that both have mapped: coming to the barrier,
a rank raises the semaphore that each other one waits for. One for each pair, and not one counter
for all: so a rank that is ahead, at its next barrier already, is not mistaken for one that is late,
and it is known who did not come.

The order of memory: `sem_post` and `sem_wait` synchronize memory (POSIX.1-2017, section 4.12). So
on any processor, ARM too, what a rank wrote before the barrier is what the others read after it.
Plain flags would do on x86 alone.
"""

import ctypes
import errno
import os
import select
import time

SPIN = 200e-6  # seconds to look again and again before going to sleep: a sleeper wakes up late
TICK = 0.05  # seconds asleep after which a rank looks whether the others are alive
FAILED, CLOSED = 1, 2  # why a rank that lives does not come again
CACHE_LINE = 64  # bytes; a semaphore (sem_t: 32 on 64-bit Linux) in each, so that none share one


class PeerLost(RuntimeError):
    """Another rank has ended or failed, and this one waited for it.

    Attributes:
        rank: which, as a rank of the world.
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
        return (size + 1) * size * CACHE_LINE

    def __init__(self, memory, rank: int, size: int, pids, names, timeout: float):
        if not hasattr(os, "pidfd_open") or not hasattr(sleeping, "sem_clockwait"):
            raise OSError("a barrier in shared memory needs Linux 5.3 with glibc 2.30, or later")
        self.rank, self.pids, self.names, self.timeout = rank, pids, names, timeout
        self.others = [(rank + away) % size for away in range(1, size)]
        self.gone = memory[: size * CACHE_LINE : CACHE_LINE].numpy()  # [rank]: 0, FAILED, CLOSED
        first = memory.data_ptr() + size * CACHE_LINE
        table = [
            [Semaphore(first + (a * size + b) * CACHE_LINE) for b in range(size)]
            for a in range(size)
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
            self.close()
            raise self.lost(other, "the first barrier") from None

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
        if self.gone[self.rank] == CLOSED:
            raise RuntimeError(f"this shared memory is closed; no {doing}")
        if self.gone[self.rank] == FAILED:
            raise RuntimeError(f"an earlier call in this shared memory failed; no {doing}")
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

    def give_up(self):
        """Let the others know that this rank will not come to a barrier again."""
        self.gone[self.rank] = FAILED

    def look(self, missing: list[int], doing: str, until: float):
        """Raise if one of these, not heard of so far, will not come."""
        for other in [other for other in missing if self.gone[other] or self.has_ended(other)]:
            if not self.heard[other].count():  # asked after: it may have come here, and ended then
                raise self.lost(other, doing)
        missing = [other for other in missing if not self.heard[other].count()]
        if missing and time.monotonic() > until:
            ranks = ", ".join(f"rank {self.names[other]}" for other in missing)
            raise TimeoutError(f"{ranks} did not come to {doing} within {self.timeout:g} s")

    def has_ended(self, other: int) -> bool:
        """True also while its parent has not asked how it ended (a zombie)."""
        if other not in self.processes:
            return True
        poll = select.poll()
        poll.register(self.processes[other], select.POLLIN)
        return bool(poll.poll(0))

    def lost(self, other: int, doing: str) -> PeerLost:
        """The error that names this rank."""
        if self.gone[other] == FAILED:
            how = "has failed"
        elif self.has_ended(other):
            how = f"has ended (process {self.pids[other]})"
        else:
            how = "has closed its shared memory"
        name = self.names[other]
        return PeerLost(f"rank {name} {how}, and did not come to {doing}", name)

    def close(self):
        """Close the descriptors; this rank does not come again."""
        self.gone[self.rank] = self.gone[self.rank] or CLOSED
        while self.processes:
            os.close(self.processes.popitem()[1])


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


# Python lets other threads run during a call of the first, and not during one of the second, which
# is quicker: for calls that do not wait.
sleeping, quick = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None, use_errno=True)


class Semaphore:
    """A count in shared memory that one process raises and another waits for, to lower it."""

    def __init__(self, address: int):
        self.at = ctypes.c_void_p(address)

    def init(self):
        if quick.sem_init(self.at, 1, 0):  # 1: between processes
            raise OSError(ctypes.get_errno(), "sem_init")

    def post(self):
        quick.sem_post(self.at)

    def count(self) -> int:
        value = ctypes.c_int()
        quick.sem_getvalue(self.at, ctypes.byref(value))
        return value.value

    def soon(self, seconds: float) -> bool:
        """Has it come? Looks again and again for so many seconds, and lets others run between."""
        if not quick.sem_trywait(self.at):
            return True
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            sleeping.sched_yield()
            if not quick.sem_trywait(self.at):
                return True
        return False

    def wait(self, seconds: float) -> bool:
        """Has it come? Sleeps until then, at most so many seconds."""
        end = Timespec(*divmod(time.monotonic_ns() + int(seconds * 1e9), 10**9))
        if not sleeping.sem_clockwait(self.at, time.CLOCK_MONOTONIC, ctypes.byref(end)):
            return True
        if (number := ctypes.get_errno()) not in (errno.ETIMEDOUT, errno.EINTR):
            raise OSError(number, os.strerror(number))
        return False
