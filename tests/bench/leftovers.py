"""Compare a kernel's processes, listening sockets and files before and after a fault."""

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from helpers.runtime.local.forkserver.bootstrap import SPARE
from tests.bench.kernel import Kernel

SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class Around:
    """A snapshot at one moment.

    Attributes:
        processes: ids of all processes that the kernel started, orphans included. Spare ranks,
            which wait for the next call, are no leftovers.
        listening: addresses at which these processes or the kernel accept connections.
        files: in the kernel's temporary folder, and in shared memory.
    """

    processes: frozenset
    listening: frozenset
    files: frozenset

    def new_since(self, before: "Around") -> str:
        """Describe what is new: "2 processes, 1 file"; "none"."""
        counts = {
            "process": len(self.processes - before.processes),
            "listening socket": len(self.listening - before.listening),
            "file": len(self.files - before.files),
        }
        words = []
        for word, count in counts.items():
            if count:
                plural = "es" if word.endswith("s") else "s"
                words.append(f"{count} {word}{plural if count > 1 else ''}")
        return ", ".join(words) or "none"


def around(kernel: Kernel) -> Around:
    processes = [process for process in kernel.descendants() if not is_spare(process)]
    listening = set()
    for pid in {kernel.pid, *(p.pid for p in processes)}:
        try:
            for connection in psutil.Process(pid).net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    listening.add((connection.laddr.ip, connection.laddr.port))
        except psutil.Error:  # the process has ended
            pass
    files = {p for p in kernel.temporary.rglob("*") if p.is_file()}
    if SHARED.is_dir():
        files |= set(SHARED.iterdir())
    return Around(frozenset(p.pid for p in processes), frozenset(listening), frozenset(files))


def is_spare(process: psutil.Process) -> bool:
    try:
        return process.name() == SPARE
    except psutil.Error:  # it has ended
        return False


def settle(kernel: Kernel, before: Around, seconds: float) -> str:
    """Wait until nothing new is left, at most `seconds`. Returns the leftovers in words."""
    until = time.monotonic() + seconds
    while (left := around(kernel).new_since(before)) != "none" and time.monotonic() < until:
        time.sleep(0.05)
    return left
