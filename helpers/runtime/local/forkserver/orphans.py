"""End the processes that ranks have started and left behind. Linux gives them to the server."""

import contextlib
import ctypes
import os
import signal
import sys

C = ctypes.CDLL(None)
PR_SET_CHILD_SUBREAPER = 36
LISTED = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


class Orphans:
    """The processes that ranks left, also those in sessions of their own.

    A rank adopts the orphans of its children, and the server adopts the orphans of the rank. So
    every child of the server that is no rank belonged to a rank that has ended.

    Args:
        spare: a child that is no rank either: the first generation of the server.

    Attributes:
        known: pids that were killed, and are not gone yet.
    """

    def __init__(self, spare: int | None = None):
        self.known: set[int] = set()
        self.spare = spare
        become_subreaper()

    def end(self, ranks, ended=()):
        """Kill the orphans of ranks. The next call kills the orphans of these orphans.

        Args:
            ranks: pids of the ranks that live.
            ended: the processes of the ranks that have ended since the last call.
        """
        self.known.clear()
        if not LISTED:
            for rank in ended:
                kill_group(rank.pid)
        for pid in children():
            if pid in ranks:
                continue
            if pid != self.spare and not is_tracker(pid):  # the tracker ends after its cleanup
                self.known.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def kill_group(pid: int):
    """Kill the processes in a rank's own session: the only known ones without a list."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def become_subreaper():
    """Have orphans among this process's descendants become its children. Linux."""
    if sys.platform == "linux":
        C.prctl(PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Return the pids of this process's children on Linux; none elsewhere."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return list(map(int, file.read().split()))
    except OSError:
        return []


def is_tracker(pid: int) -> bool:
    """Is it multiprocessing's resource tracker, which removes leftovers in shared memory?"""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read()
    except OSError:
        return False
