"""Bytes that this process sent over TCP, counted by the kernel (Linux; elsewhere unknown).

Linux keeps the counts of a connection and gives them with getsockopt(TCP_INFO), struct tcp_info of
linux/tcp.h. Read: what the process has handed over and the kernel has taken, whether or not it has
left: sent, less what was sent twice, and what waits.
"""

import os
import re
import socket
import struct
import sys
from collections.abc import Collection

BYTES_SENT, BYTES_RETRANSMITTED, NOT_SENT = (200, "Q"), (208, "Q"), (144, "I")  # offset, format
ENOUGH = 216  # bytes of tcp_info, since Linux 4.19


class SentBytes:
    """Counts from its making on: `SentBytes().read()`.

    Only connections that some epoll loop of this process serves are counted, as those of gloo are:
    a TCPStore's client, a file server or a browser that the program talks to is none of them. The
    server of a TCPStore has a loop, so its port is to be given.

    What went through a connection that was closed meanwhile is lost.
    """

    def __init__(self, without_ports: Collection[int] = ()):
        self.without_ports = frozenset(without_ports)
        self._start = self._counts()

    def _counts(self) -> dict[int, int] | None:
        return sent_by_connection(self.without_ports)

    def read(self) -> int | None:
        """Bytes sent since, headers of the transport's user included, of TCP/IP not; or None."""
        now = self._counts()
        if self._start is None or now is None:
            return None
        return sum(sent - self._start.get(inode, 0) for inode, sent in now.items())


def sent_by_connection(without_ports: Collection[int] = ()) -> dict[int, int] | None:
    """Inode of a connection -> bytes that this process has sent through it since it was made.

    None where the kernel does not tell: not Linux, or before 4.19.
    """
    if not sys.platform.startswith("linux"):
        return None
    counts = {}
    for fd in looped():
        try:
            connection = socket.fromfd(fd, -1, -1, -1)  # a duplicate; it finds out what it is
        except OSError:  # closed meanwhile, or no socket
            continue
        with connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                continue  # an event loop's own pair of Unix sockets, say: they have no ports
            try:
                ports = {connection.getsockname()[1], connection.getpeername()[1]}
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
                inode = os.fstat(connection.fileno()).st_ino
            except OSError:  # listens, or is not connected, or not TCP
                continue
        if len(info) < ENOUGH:
            return None
        if ports.isdisjoint(without_ports):
            sent, twice, waiting = (
                struct.unpack_from(form, info, offset)[0]
                for offset, form in (BYTES_SENT, BYTES_RETRANSMITTED, NOT_SENT)
            )
            counts[inode] = sent - twice + waiting
    return counts


def looped() -> set[int]:
    """Descriptors that the epoll loops of this process watch."""
    watched = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{entry}") != "anon_inode:[eventpoll]":
                continue
            with open(f"/proc/self/fdinfo/{entry}") as info:
                watched.update(int(fd) for fd in re.findall(r"^tfd:\s*(\d+)", info.read(), re.M))
        except OSError:  # closed meanwhile
            continue
    return watched
