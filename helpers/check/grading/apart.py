"""In a sandbox: fork ranks that have nothing in common, from a process that is clean. Linux.

Each rank gets namespaces of its own inside the sandbox: no network, not even a loopback, no file
that it could write, no terminal, no processes but its own, and no /proc. It has one descriptor, a
socket to the judge.
"""

import os
import resource
import socket
import struct
from collections.abc import Callable

from helpers.runtime.local import network

NAMESPACES = 0x10000000 | 0x00020000 | 0x40000000 | 0x08000000 | 0x20000000  # user mnt net ipc pid
MS_BIND, AT_FDCWD, AT_RECURSIVE = 4096, -100, 0x8000
MOUNT_SETATTR, READ_ONLY = 442, struct.pack("QQQQ", 1, 0, 0, 0)  # Linux 5.12


def fork(control: socket.socket, number: int, serve: Callable[[int], None]) -> bool:
    """Start so many ranks. Each calls serve(descriptor) with a socket that comes by `control`.

    Returns:
        Whether the system lets a rank leave the others. If not, there are none.
    """
    _, sockets, _, _ = socket.recv_fds(control, 1, number)
    possible = os.waitstatus_to_exitcode(os.waitpid(forked(leave), 0)[1]) == 0
    for one in sockets if possible else ():
        forked(lambda one=one: (only(one), leave(), serve(one)))
    for one in sockets:
        os.close(one)
    return possible


def forked(run: Callable) -> int:
    """Call `run` in a new process. Return its number."""
    child = os.fork()
    if not child:
        try:
            run()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def leave():
    """Leave all other processes of the sandbox, and go on in a new one.

    Raises:
        OSError: the system refuses.
    """
    network.unshare(NAMESPACES)
    child = os.fork()  # the first process in the new namespace: with it all others in there end
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0)
    call = network.C
    # All of a sandbox's ranks would see one another's terminals.
    shown = any(call.mount(b"/tmp", one, None, MS_BIND, None) for one in (b"/proc", b"/dev/pts"))
    if shown or call.syscall(
        MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, READ_ONLY, len(READ_ONLY)
    ):
        raise OSError("the files of a rank cannot be made read-only")
    network.drop_capabilities()


def only(kept: int):
    """Close every descriptor of this process but the three usual ones and this one."""
    os.closerange(3, kept)
    os.closerange(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
