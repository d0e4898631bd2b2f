"""Faults of a rank, by signals: some of them only the rank itself can commit."""

import ctypes
import os
import signal
import socket
from contextlib import suppress

from helpers.resilience.crew import sockets


def segfault(*_):
    ctypes.string_at(0)


def hold_the_gil(*_):
    """C code that never gives back Python's lock: no other thread of this process runs again."""
    ctypes.PyDLL(None).sleep(3600)


def cut(*_):
    """All connections break: to the other ranks, and to the store where they meet."""
    for number in sockets().values():
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            connection.getpeername()  # a socket that listens stays: gloo aborts without it
            connection.shutdown(socket.SHUT_RDWR)


INSIDE = {signal.SIGRTMIN + 1 + k: fault for k, fault in enumerate([segfault, hold_the_gil, cut])}
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
FAULTS |= {fault.__name__: number for number, fault in INSIDE.items()}


def listen():
    for number, fault in INSIDE.items():
        signal.signal(number, fault)
