"""Give the ranks of a call a network of their own, with a loopback for them alone. Linux.

All users of a machine share its loopback, and gloo's sockets accept every process. So rank 0 makes
a network namespace, before it has a second thread, and the other ranks join it. The namespace ends
with the last rank.

Root may do so directly. An ordinary user needs a user namespace around it. There the user, the
groups and the rights to files stay the same. A change to another user (`sudo`) fails, and the files
of root and of all other users seem to belong to `nobody`: see `private.check_own`.
"""

import ctypes
import fcntl
import os
import re
import socket
import struct
import traceback

C = ctypes.CDLL(None)
POSSIBLE = "HELPERS_OWN_NETWORK"  # environment of the server, for the ranks that it starts
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SET_FLAGS, UP = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP
CAPABILITIES = 0x20080522  # version 3 of the system call's structures
WISHES = re.compile(
    r"network is unreachable|name resolution|name or service not known|no address associated|"
    r"ConnectionRefusedError",
    re.IGNORECASE,
)
HINT = (
    "This rank is in a network of the ranks' own. "
    "launch(…, network=True) leaves the ranks in the machine's network."
)

_own = False  # is this process in a network of the ranks' own?


def possible() -> bool:
    """Can this user make a network here? A child tries: half a success cannot be undone."""
    child = os.fork()
    if not child:
        code = 1
        try:
            make()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def make() -> list[int]:
    """Enter a new network with a loopback that is up. This process must have no second thread.

    Returns:
        Descriptors for `join`.

    Raises:
        OSError: the system refuses.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWNET if user == 0 else CLONE_NEWUSER | CLONE_NEWNET)
    if user:
        write("setgroups", "deny")
        write("uid_map", f"{user} {user} 1")
        write("gid_map", f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))
    names = ("net",) if user == 0 else ("user", "net")
    descriptors = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in names]
    if user:
        drop_capabilities()
    return descriptors


def join(descriptors: list[int]):
    """Enter the network that rank 0 has made. This process must have no second thread.

    Raises:
        OSError: the system refuses.
    """
    for descriptor in descriptors:  # the user namespace first: it gives the right to the network
        if C.setns(descriptor, 0):
            raise OSError("the ranks' network cannot be joined")
    if len(descriptors) > 1:
        drop_capabilities()


def take_place(message: tuple[str, int], link: int | None):
    """Enter the network that the notebook has chosen for this rank.

    Args:
        message: "make" a network for so many other ranks, "join" rank 0's network, or "stay".
        link: the descriptor of a socket between rank 0 and all others: this rank's end.
    """
    global _own
    role, others = message
    if role == "stay":
        return
    with socket.socket(fileno=link) as line:
        if role == "make":
            descriptors = try_to_make()
            for _ in range(others):
                socket.send_fds(line, [b"own" if descriptors else b"none"], descriptors)
        else:
            _, descriptors, _, _ = socket.recv_fds(line, 16, 2)
            join(descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    _own = bool(descriptors)


def try_to_make() -> list[int]:
    """Call `make`; return no descriptors if the server has found that it cannot work here."""
    if POSSIBLE not in os.environ:
        return []
    try:
        return make()
    except OSError:  # the system has reached its limit of networks since then
        return []


def own() -> bool:
    """Is this process a rank in a network of the ranks' own?"""
    return _own


def hint(error: BaseException) -> str:
    """Return advice if an error looks as if the rank needed the machine's network, else ""."""
    if not _own:
        return ""
    text = "".join(traceback.format_exception(error))
    return HINT if WISHES.search(text) else ""


def unshare(what: int):
    if C.unshare(what):
        raise OSError("no network namespace can be made here")


def write(name: str, text: str):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)


def drop_capabilities():
    """Give up all rights that came with the user namespace: a rank is an ordinary process."""
    header, data = struct.pack("Ii", CAPABILITIES, 0), bytes(24)
    if C.capset(header, data):
        raise OSError("a rank keeps capabilities that it should not have")
