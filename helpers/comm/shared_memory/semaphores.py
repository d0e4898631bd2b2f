"""Semaphores in shared memory: one process raises a count, and another process waits for it.

`sem_post` and `sem_wait` synchronize memory (POSIX.1-2017, section 4.12). A process reads after its
wait what the other process wrote before its post, on any processor, including ARM. Plain flags
would work only on x86.
"""

import ctypes
import errno
import os
import time

NBYTES = 64  # bytes per semaphore: a cache line (sem_t has 32 on 64-bit Linux)


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


# During a call of `sleeping`, other Python threads can run. A call of `quick` keeps the GIL, and is
# faster: use it for calls that do not wait.
sleeping, quick = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None, use_errno=True)


def available() -> bool:
    """Whether the C library has `sem_clockwait` (Linux with glibc 2.30, or later)."""
    return hasattr(sleeping, "sem_clockwait")


class Semaphore:
    """A count in shared memory: one process raises it, another waits and lowers it."""

    def __init__(self, address: int):
        self.at = ctypes.c_void_p(address)

    def init(self):
        if quick.sem_init(self.at, 1, 0):  # 1: shared between processes
            raise OSError(ctypes.get_errno(), "sem_init")

    def post(self):
        quick.sem_post(self.at)

    def count(self) -> int:
        value = ctypes.c_int()
        quick.sem_getvalue(self.at, ctypes.byref(value))
        return value.value

    def soon(self, seconds: float) -> bool:
        """Poll for at most `seconds`; other threads can run. Returns whether the count rose."""
        if not quick.sem_trywait(self.at):
            return True
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            sleeping.sched_yield()
            if not quick.sem_trywait(self.at):
                return True
        return False

    def wait(self, seconds: float) -> bool:
        """Sleep for at most `seconds`. Returns whether the count was raised."""
        end = Timespec(*divmod(time.monotonic_ns() + int(seconds * 1e9), 10**9))
        if not sleeping.sem_clockwait(self.at, time.CLOCK_MONOTONIC, ctypes.byref(end)):
            return True
        if (number := ctypes.get_errno()) not in (errno.ETIMEDOUT, errno.EINTR):
            raise OSError(number, os.strerror(number))
        return False
