"""How much memory a family of processes uses: what it shares counts, and counts once."""

import os
from collections.abc import Sequence

import psutil

BLOCK = 512  # bytes of a block in os.stat
NAMELESS = "/memfd:"  # a file in memory, which no folder's size limits


def memory_of(family: Sequence[psutil.Process], enough: int) -> int:
    """Return the bytes that the processes use together, exact only above `enough`.

    The exact count takes milliseconds for each process. So it follows only where the quick count,
    in which shared pages count several times, is above `enough`.
    """
    files = nameless_files(family)
    if quick(family) + files <= enough:
        return quick(family) + files
    return sum(map(proportional, family)) + files


def quick(family: Sequence[psutil.Process]) -> int:
    used = 0
    for process in family:
        try:
            used += process.memory_info().rss
        except psutil.Error:
            continue  # it has just ended
    return used


def proportional(process: psutil.Process) -> int:
    """Return the process's own pages, and its share of the pages that it shares.

    Pages of files in memory are left out: `nameless_files` counts them, mapped or not.
    """
    try:
        with open(f"/proc/{process.pid}/smaps", encoding="utf-8", errors="replace") as file:
            return counted(file)
    except OSError:  # no such file on this system, or no right to read it
        try:
            memory = process.memory_info()
        except psutil.Error:
            return 0  # it has just ended
        return memory.rss - getattr(memory, "shared", 0)


def counted(lines) -> int:
    total, nameless = 0, False
    for line in lines:
        name, *rest = line.split()
        if not name.endswith(":"):
            nameless = NAMELESS in line
        elif name == "Pss:" and not nameless:
            total += int(rest[0]) << 10
    return total


def nameless_files(family: Sequence[psutil.Process]) -> int:
    """Return the bytes of the files without a name that the processes have open, each once."""
    found = {}
    for process in family:
        folder = f"/proc/{process.pid}/fd"
        try:
            for file in os.listdir(folder):
                if os.readlink(f"{folder}/{file}").startswith(NAMELESS):
                    about = os.stat(f"{folder}/{file}")
                    found[about.st_dev, about.st_ino] = about.st_blocks * BLOCK
        except OSError:
            continue
    return sum(found.values())
