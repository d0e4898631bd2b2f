"""Semaphores in memory that processes share: one process raises a count, another waits for it.

The order of memory: `sem_post` and `sem_wait` synchronize memory (POSIX.1-2017, section 4.12). So
on any processor, ARM too, what a rank wrote before it raised the count is what the other reads
after it waited. Plain flags would do on x86 alone.
"""

import ctypes
import errno
import os
import time

NBYTES = 64  # bytes from one to the next (sem_t has 32 on 64-bit Linux): a cache line for each


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


# Python lets other threads run during a call of the first, and not during one of the second, which
# is quicker: for calls that do not wait.
sleeping, quick = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None, use_errno=True)


def available() -> bool:
    """Whether the C library has what is needed (Linux with glibc 2.30, or later)."""
    return hasattr(sleeping, "sem_clockwait")


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
