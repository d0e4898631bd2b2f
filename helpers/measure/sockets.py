"""Count the bytes that this process sent over TCP, with the kernel's counters (Linux only).

Linux counts the bytes of each connection: getsockopt(TCP_INFO), struct tcp_info of linux/tcp.h. The
count here is bytes sent, minus bytes sent again, plus bytes that wait in the kernel: all bytes that
the process passed to the kernel.
"""

import os
import re
import socket
import stat
import struct
import sys
from collections.abc import Collection

BYTES_SENT, BYTES_RETRANSMITTED, NOT_SENT = (200, "Q"), (208, "Q"), (144, "I")  # offset, format
ENOUGH = 216  # bytes of tcp_info, since Linux 4.19


class SentBytes:
    """Count sent bytes from now on; `read()` returns the count.

    It counts only connections that an epoll loop of this process serves, such as gloo's. So a
    TCPStore's client, a file server or a browser does not count. A TCPStore's server has a loop: to
    exclude it, pass its port.

    Bytes through a connection that has been closed in between are lost.
    """

    def __init__(self, without_ports: Collection[int] = ()):
        self.without_ports = frozenset(without_ports)
        self._start = self._counts()

    def _counts(self) -> dict[int, int] | None:
        return sent_by_connection(self.without_ports)

    def read(self) -> int | None:
        """Return the bytes sent since the start; None if the kernel has no counters.

        Headers of gloo's own protocol count, TCP/IP headers do not.
        """
        now = self._counts()
        if self._start is None or now is None:
            return None
        return sum(sent - self._start.get(inode, 0) for inode, sent in now.items())


def sent_by_connection(without_ports: Collection[int] = ()) -> dict[int, int] | None:
    """Map a connection's inode to the bytes that this process has sent through it.

    None if the kernel has no counters: not Linux, or before 4.19.
    """
    if not sys.platform.startswith("linux"):
        return None
    counts = {}
    for fd in looped():
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):  # fromfd would leave its duplicate open
                continue
            connection = socket.fromfd(fd, -1, -1, -1)  # a duplicate; -1: detect the socket's type
        except OSError:  # closed in between
            continue
        with connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                continue  # for example an event loop's own pair of Unix sockets, without ports
            try:
                ports = {connection.getsockname()[1], connection.getpeername()[1]}
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
                inode = os.fstat(connection.fileno()).st_ino
            except OSError:  # a listening, unconnected or non-TCP socket
                continue
        if len(info) < ENOUGH:
            return None
        if ports.isdisjoint(without_ports):
            counts[inode] = passed_on(info)
    return counts


def passed_on(info: bytes) -> int:
    """Compute from a `struct tcp_info` the bytes that the process passed to the kernel."""
    sent, twice, waiting = (
        struct.unpack_from(form, info, offset)[0]
        for offset, form in (BYTES_SENT, BYTES_RETRANSMITTED, NOT_SENT)
    )
    return sent - twice + waiting


def looped() -> set[int]:
    """The file descriptors that the epoll loops of this process watch."""
    watched = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{entry}") != "anon_inode:[eventpoll]":
                continue
            with open(f"/proc/self/fdinfo/{entry}") as info:
                watched.update(int(fd) for fd in re.findall(r"^tfd:\s*(\d+)", info.read(), re.M))
        except OSError:  # closed in between
            continue
    return watched
