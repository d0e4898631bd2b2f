"""Check that this process has done nothing, sent nothing and received nothing. Linux.

A message between two ranks shows in no sequence number until it has arrived. So a rank that waits
for a message is stuck only if no message is on its way. Three facts show that: the threads of both
processes have not run, all sent bytes have arrived, and no byte has arrived since the last look.
"""

import fcntl
import os
import socket
import stat
import struct
import termios
import threading

GLOO_LOOP = "gloo_tcp_loop"  # gloo's thread wakes every 10 ms by itself; it only moves bytes
BYTES = struct.Struct("QQ")  # acknowledged and received, in Linux's `struct tcp_info`
BYTES_AT = 120
SENDING = getattr(termios, "TIOCOUTQ", None)


def activity() -> tuple | None:
    """Return a value that changes with all that the process does; None if it is busy or unknown."""
    threads, bytes_moved = thread_times(), traffic()
    return None if threads is None or bytes_moved is None else (threads, bytes_moved)


def thread_times() -> dict[str, str] | None:
    """Return, for each thread but this one and gloo's, its nanoseconds on and waiting for a core.

    None while one of the threads runs.
    """
    times, mine = {}, str(threading.get_native_id())
    for thread in set(os.listdir("/proc/self/task")) - {mine}:
        if read(thread, "comm").strip() == GLOO_LOOP:
            continue
        state = read(thread, "stat").rpartition(")")[2].split()[0]
        if state not in "SI":
            return None
        times[thread] = read(thread, "schedstat")
    return times


def read(thread: str, name: str) -> str:
    with open(f"/proc/self/task/{thread}/{name}") as file:
        return file.read()


def traffic() -> dict[int, tuple[int, int]] | None:
    """Return the bytes sent and received by each connection; None while some are on their way."""
    moved = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if queued(connection, termios.FIONREAD) or queued(connection, SENDING):
                    return None
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                moved[fd] = BYTES.unpack_from(info, BYTES_AT)
        except OSError:  # not connected, or closed since
            continue
    return moved or None


def queued(connection: socket.socket, request: int) -> int:
    return struct.unpack("i", fcntl.ioctl(connection, request, bytes(4)))[0]
