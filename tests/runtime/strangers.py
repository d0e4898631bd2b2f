"""Strangers on this machine: they look for ports, connect first, and speak as a rank would.

Each runs in a child of this process; as another user where this one is root.
"""

import os
import select
import socket
import struct
import traceback
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
LISTEN = "0A"
PREAMBLE = struct.Struct("<6Q")  # gloo: bytes in all, operation, slot, offset, length, offset there
DATA, SEND_READY, RECEIVE_READY = 1, 2, 3
GREETINGS = range(8)  # gloo: the number of the pair that a connection is for


def sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except FileNotFoundError:
            pass
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def tcp(pid: int | str = "self") -> list[tuple[str, int, str, str]]:
    """(local address, port, state, inode) of every TCP socket in that process's network."""
    rows = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            address, port = fields[1].split(":")
            rows.append((address, int(port, 16), fields[3], fields[9]))
    return rows


def listening(pid: int, seen_from: int | str = "self") -> list[int]:
    """The ports on which a process listens, as far as another one can see them."""
    ours = sockets(pid)
    return [port for _, port, state, inode in tcp(seen_from) if state == LISTEN and inode in ours]


@contextmanager
def stranger(deed, *arguments):
    """A child that does it, as another user if that can be; it ends with the block."""
    child = os.fork()
    if not child:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            deed(*arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    try:
        yield child
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def speak_as_a_rank(port: int, ready: int, payload: bytes = b"\x01"):
    """Connect before the ranks do, greet as each of them, and answer whatever is asked.

    Args:
        ready: a descriptor that gets a byte once all connections are made.
        payload: what the tensors that are sent are filled with.
    """
    lines, poll = {}, select.poll()  # not select: its descriptors end at 1,024
    for number in GREETINGS:
        line = connect(port)
        line.sendall(struct.pack("<q", number))
        lines[line.fileno()] = line
        poll.register(line, select.POLLIN)
    os.write(ready, b"!")
    text = dict.fromkeys(lines.values(), b"")
    while text:
        for line in [lines[number] for number, _ in poll.poll()]:
            try:
                data = line.recv(65536)
            except OSError:
                data = b""
            if not data:
                poll.unregister(line)
                del text[line]
                continue
            text[line] += data
            text[line] = answer(line, text[line], payload)


def connect(port: int) -> socket.socket:
    """All of Python that it needs is imported: another user may not be able to read the rest."""
    line = socket.socket()
    line.settimeout(5)
    line.connect(("127.0.0.1", port))
    return line


def answer(line: socket.socket, text: bytes, payload: bytes) -> bytes:
    """Answer all whole messages; returns the rest."""
    while len(text) >= PREAMBLE.size:
        size, operation, slot, _, length, _ = PREAMBLE.unpack_from(text)
        if operation == DATA and len(text) < size:
            break
        text = text[max(size, PREAMBLE.size) if operation == DATA else PREAMBLE.size :]
        if operation == RECEIVE_READY:
            head = PREAMBLE.pack(PREAMBLE.size + length, DATA, slot, 0, length, 0)
            line.sendall(head + (payload * length)[:length])
        elif operation == SEND_READY:
            line.sendall(PREAMBLE.pack(PREAMBLE.size, RECEIVE_READY, slot, 0, length, 0))
    return text
