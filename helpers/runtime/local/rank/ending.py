"""End a rank as Python ends: threads, exit functions, files.

A rank is a fork that ends with `os._exit`, as every forked Process of multiprocessing does.
Python's normal end would first copy all the memory that the rank shares. So this file does what the
function has left for the end.
"""

import atexit
import contextlib
import fcntl
import gc
import io
import os
import stat
import sys
import threading

_before = 0  # exit functions that the rank itself has registered


def begin():
    """Count the exit functions before any function runs: later ones belong to the function."""
    global _before
    _before = atexit._ncallbacks()


def something_left() -> bool:
    """Has the function left exit functions or running threads?"""
    threads = (t for t in threading.enumerate() if t is not threading.main_thread())
    return atexit._ncallbacks() > _before or any(not thread.daemon for thread in threads)


def finish():
    """Wait for threads, call the exit functions, and write the buffers of open files."""
    threading._shutdown()  # multiprocessing and Python itself call both in this way
    atexit._run_exitfuncs()
    write_files()


def write_files():
    """Write the buffers of open files."""
    if not any(map(writes_to_disk, open_descriptors())):
        return  # a look at all objects takes long if there are many
    for thing in gc.get_objects():
        if isinstance(thing, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):  # closed, detached, or a full disk
                if thing.writable():
                    thing.flush()


def open_descriptors() -> list[int]:
    return list(map(int, os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")))


def writes_to_disk(fd: int) -> bool:
    """Is this descriptor a file with a name, open for writing?"""
    try:
        status = os.fstat(fd)
        mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:  # closed since the list was made
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 0 and mode != os.O_RDONLY
