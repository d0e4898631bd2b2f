"""End a rank as Python ends: threads, exit functions, files.

A rank is a fork that ends with `os._exit`, as every forked Process of multiprocessing does: taking
the interpreter apart would first copy all the memory that it shares. What a function has left
to be done at the end is done here instead.
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

_before = 0  # exit functions that are nobody's business but the rank's own


def begin():
    """Before any function runs here: whatever is registered later is the function's."""
    global _before
    _before = atexit._ncallbacks()


def something_left() -> bool:
    """Has the function left something to be done at the end: exit functions, running threads?"""
    threads = (t for t in threading.enumerate() if t is not threading.main_thread())
    return atexit._ncallbacks() > _before or any(not thread.daemon for thread in threads)


def finish():
    """Wait for threads, call the exit functions, write what files still hold back."""
    threading._shutdown()  # both as multiprocessing and Python itself call them
    atexit._run_exitfuncs()
    write_files()


def write_files():
    """Write what open files hold in their buffers."""
    if not any(map(writes_to_disk, open_descriptors())):
        return  # to look at all objects takes long where there are many
    for thing in gc.get_objects():
        if isinstance(thing, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):  # closed, detached, no room left
                if thing.writable():
                    thing.flush()


def open_descriptors() -> list[int]:
    return list(map(int, os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")))


def writes_to_disk(fd: int) -> bool:
    """Is it a file with a name, open for writing?"""
    try:
        status = os.fstat(fd)
        mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:  # closed since it was listed
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 0 and mode != os.O_RDONLY
